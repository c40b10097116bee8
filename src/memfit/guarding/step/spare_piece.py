"""A small piece of the device's pool that is given back while a step that ran out comes to its end.

An operation that finds no memory waits for ten seconds. After the first has failed, those that had begun go
on, and in a pool that is full to the last bytes even a single number waits, one after the other: that took
minutes. With the spare piece given back they find room, and the step ends with the error of the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from memfit.guarding.step.rollback import free_bytes
from memfit.machine import limit_in_force

_MOST_BYTES = 256 << 10
_SHARE = 128  # of the limit
_PATIENCE_SECONDS = 2.0  # for most steps that is more than they take
_LOOK_SECONDS = 0.5
_IDLE_SECONDS = 30.0  # after the last step, the thread ends


class _SparePiece:
    """The spare piece of this process, and the thread that gives it back."""

    def __init__(self) -> None:
        self._piece: Any = None
        self._began: float | None = None  # the step that runs
        self._last = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def beside_step(self) -> Iterator[None]:
        """Have the piece while a step runs, as long as the pool is not full for seconds."""
        limit_bytes = limit_in_force()
        if limit_bytes is None:
            yield
            return
        self._take(min(_MOST_BYTES, limit_bytes // _SHARE))
        self._began = self._last = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, daemon=True, name="memfit spare piece")
            self._thread.start()
        try:
            yield
        finally:
            self._began = None

    def give_back(self) -> None:
        """Let it go, until the next step."""
        self._piece = None

    def _take(self, size_bytes: int) -> None:
        if self._piece is None and (free_bytes() or 0) > 4 * size_bytes:
            self._piece = tf.zeros((size_bytes,), tf.uint8)

    def _look(self) -> None:
        while self._began is not None or time.monotonic() - self._last < _IDLE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            began, piece = self._began, self._piece
            if began is None or piece is None or time.monotonic() - began < _PATIENCE_SECONDS:
                continue
            size_bytes = len(piece)
            del piece
            if (free_bytes() or 0) < size_bytes:
                self.give_back()
        self.give_back()


SPARE_PIECE = _SparePiece()
