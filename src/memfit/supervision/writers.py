"""Checkpoints written while training goes on, no more often than a small share of its time pays for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memfit.devices import host_memory
from memfit.supervision.files import Array
from memfit.supervision.journals import JournalFile
from memfit.supervision.shelves import Shelf

if TYPE_CHECKING:
    from memfit.supervision.variables import Variables

SHARE = 0.02  # of the time
_LEAST_SECONDS = 1.0  # between two checkpoints
_GRACE_SECONDS = 1.0  # that checkpoints at the end of trainings may take in any case
_AFTER_FAILURE_SECONDS = 30.0
_MUCH = 0.1  # of the memory that is left: copies that take more are made one by one


class Pace:
    """When the next checkpoint is due, by what those before have cost."""

    def __init__(
        self,
        share: float = SHARE,
        least_seconds: float = _LEAST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most so large a share of the time, and at least so many seconds between two."""
        self._share, self._least_seconds, self._clock = share, least_seconds, clock
        self._next = clock()
        self._began, self._spent = clock(), 0.0

    def is_due(self) -> bool:
        """Whether one may be made now."""
        return self._clock() >= self._next

    def ask(self) -> None:
        """Let one be made as soon as possible."""
        self._next = self._clock()

    def count(self, seconds: float) -> None:
        """One was made and took so long."""
        self._spent += seconds
        self._next = self._clock() + max(self._least_seconds, seconds / self._share)

    def wait(self, seconds: float) -> None:
        """Make none for a while."""
        self._next = self._clock() + seconds

    def pays(self, seconds: float) -> bool:
        """Whether one more that takes so long stays within the share, or within what is always allowed."""
        return self._spent + seconds <= _GRACE_SECONDS + self._share * (self._clock() - self._began)


class Writer:
    """Puts checkpoints on a shelf; a disk that is full costs a message, not the training."""

    def __init__(self, shelf: Shelf, journal: JournalFile, tell: Callable[[str], None]) -> None:
        self.pace = Pace()
        self._shelf, self._journal, self._tell = shelf, journal, tell
        self._thread: threading.Thread | None = None
        self._told: str | None = None
        self._last_seconds = 0.0

    @property
    def is_free(self) -> bool:
        """Whether nothing is being written."""
        return self._thread is None or not self._thread.is_alive()

    def put(
        self, training: int, step: int, says: Mapping[str, Any], arrays: Mapping[str, Array], of: Variables
    ) -> None:
        """Write a checkpoint: beside the training where there is room for copies, else at once."""
        self.wait()
        began, values = time.monotonic(), itertools.chain(arrays.items(), of.values())
        if of.size_bytes > _MUCH * host_memory().usable_available_bytes:
            self._write(training, step, says, values, began)
            return
        self._thread = threading.Thread(target=self._write, args=(training, step, says, list(values), began))
        self._thread.start()

    def put_end(
        self, training: int, says: Mapping[str, Any], arrays: Mapping[str, Array], of: Variables
    ) -> None:
        """Write what a training came to, where that costs little of the time; else it is trained again."""
        self.wait()
        if self.pace.pays(self._last_seconds):
            values = itertools.chain(arrays.items(), of.values())
            self._write(training, None, says, values, time.monotonic())

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(
        self,
        training: int,
        step: int | None,
        says: Mapping[str, Any],
        arrays: Iterable[tuple[str, Array]],
        began: float,
    ) -> None:
        try:
            size = self._shelf.put(training, step, says, arrays)
        except OSError as error:
            self.pace.wait(_AFTER_FAILURE_SECONDS)
            self._fail(error)
            return
        self._last_seconds = time.monotonic() - began
        self.pace.count(self._last_seconds)
        self._journal.write(
            "checkpoint", training=training, step=step, bytes=size, seconds=round(self._last_seconds, 4)
        )

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._journal.write("no checkpoint", reason=reason)
        if reason != self._told:
            self._told = reason
            self._tell(f"No checkpoint could be written ({reason}). Training goes on without.")
