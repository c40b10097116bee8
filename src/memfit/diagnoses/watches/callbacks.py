"""A watch as the user has it: a context manager and a Keras callback."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import keras

from memfit.diagnoses.watches.watching import Watching
from memfit.records import Leak, Reading


class Watch(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Follows memory inside a `with` block, or through a `fit`, `evaluate` or `predict` as a callback."""

    def __init__(self) -> None:
        super().__init__()
        self._watching = Watching()

    @property
    def timeline(self) -> tuple[Reading, ...]:
        """What there was, over time."""
        return self._watching.timeline

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """What leaks, as far as it is known now; all of it once the watch is over."""
        return self._watching.leaks

    @property
    def is_on(self) -> bool:
        """Whether memory is being followed now."""
        return bool(self._watching.reason)

    def step(self) -> None:
        """Mark a step of a loop of your own; it costs next to nothing."""
        self._watching.step(sys._getframe(1))

    def __enter__(self) -> Self:
        self._watching.begin("block", sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.end("block", sys._getframe(1))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """`fit` begins."""
        self._watching.begin("fit", sys._getframe(1))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """`fit` ends."""
        self._watching.end("fit", sys._getframe(1))

    def on_test_begin(self, *_: Any, **__: Any) -> None:
        """`evaluate` begins, or the validation of `fit`."""
        self._watching.begin("evaluate", sys._getframe(1))

    def on_test_end(self, *_: Any, **__: Any) -> None:
        """`evaluate` ends."""
        self._watching.end("evaluate", sys._getframe(1))

    def on_predict_begin(self, *_: Any, **__: Any) -> None:
        """`predict` begins."""
        self._watching.begin("predict", sys._getframe(1))

    def on_predict_end(self, *_: Any, **__: Any) -> None:
        """`predict` ends."""
        self._watching.end("predict", sys._getframe(1))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `fit`."""
        self._watching.step(sys._getframe(1))

    def on_predict_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `predict`."""
        self._watching.step(sys._getframe(1))

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `evaluate`; those of a validation are no steps of their own."""
        if self._watching.reason == "evaluate":
            self._watching.step(sys._getframe(1))
