"""Temporary changes of a model: taken back by `undo`, or by leaving a `with` block."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

_TRACED_BY_KERAS = ("train_function", "test_function", "predict_function")


class Undoable:
    """Changes of a model that are in force; how to take them back is in `_changes`."""

    _changes: ExitStack

    def undo(self) -> None:
        """Let the model be as it was; weights and everything else stay."""
        self._changes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def forget_traces(model: Any) -> None:
    """Let Keras trace the steps of a model anew; any other layer has none."""
    for name in _TRACED_BY_KERAS:
        if hasattr(model, name):
            setattr(model, name, None)
