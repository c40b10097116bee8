"""Somebody who looks on while a model is trained: a supervisor, which keeps and restores what it sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from memfit.runs.batches import Batch


class Watcher(Protocol):
    """What a guarded training tells whoever looks on."""

    def attached(self, protection: Any) -> None:
        """A guard stands before the model from now on."""
        ...

    def saw(self, batch: Batch) -> None:
        """A batch is about to be trained on."""
        ...


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher | None:
    """Who looks on at trainings that begin here and now."""
    return _WATCHER.get()


@contextmanager
def watched_by(one: Watcher) -> Iterator[None]:
    """Let somebody look on at the trainings that begin in here."""
    token = _WATCHER.set(one)
    try:
        yield
    finally:
        _WATCHER.reset(token)
