"""The checkpoints of a run: the newest few of each training, and the last one of those that are over."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.core.errors import DamagedCheckpoint
from memfit.machine import host_memory
from memfit.running.checkpoints.format import Array, read_checkpoint, write_checkpoint
from memfit.running.journal.events import CheckpointEvent, CheckpointFailureEvent
from memfit.running.journal.run_folder import JOURNAL, Job, JournalFile, tell

if TYPE_CHECKING:
    from memfit.running.checkpoints.training_state import Variables

_NAME = re.compile(r"training-(\d+)-(?:step-(\d+)|end)\.checkpoint")
_ALL = "training-*.checkpoint"

Contents = tuple[dict[str, Any], dict[str, Array]]


def checkpoints_in(folder: Path) -> list[Path]:
    """The files of all checkpoints in a folder."""
    return list(folder.glob(_ALL))


class CheckpointStore:
    """A folder of checkpoints; a training is known by its number, counted from one."""

    def __init__(self, folder: Path, *, newest: int = 2) -> None:
        self._folder, self._newest = folder, newest
        folder.mkdir(parents=True, exist_ok=True)
        for torn in folder.glob(".training-*"):
            torn.unlink(missing_ok=True)

    def put(
        self, training: int, step: int | None, says: Mapping[str, Any], arrays: Iterable[tuple[str, Array]]
    ) -> int:
        """Keep a checkpoint of a training after a step, or with none of its end; how many bytes it takes.

        Those before the newest few go, and all of them when the training is over.
        """
        size = write_checkpoint(self._path(training, step), says, arrays)
        for path in self._steps_of(training)[0 if step is None else self._newest :]:
            path.unlink(missing_ok=True)
        return size

    def empty(self) -> None:
        """Keep nothing: the script has come to its end."""
        for path in checkpoints_in(self._folder):
            path.unlink(missing_ok=True)

    def end_of(self, training: int) -> Contents | None:
        """The last checkpoint of a training that is over; None if it is not, or its checkpoint is damaged."""
        return next(self._sound([self._path(training, None)]), None)

    def newest_of(self, training: int) -> Contents | None:
        """The newest checkpoint of a training that is not damaged; None where there is none."""
        return next(self._sound(self._steps_of(training)), None)

    def _sound(self, paths: list[Path]) -> Iterator[Contents]:
        for path in paths:
            with suppress(DamagedCheckpoint, FileNotFoundError):
                yield read_checkpoint(path)

    def _path(self, training: int, step: int | None) -> Path:
        return self._folder / f"training-{training}-{'end' if step is None else f'step-{step}'}.checkpoint"

    def _steps_of(self, training: int) -> list[Path]:
        """Those of one training that goes on, the newest first."""
        found = []
        for path in self._folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and int(name[1]) == training and name[2] is not None:
                found.append((int(name[2]), path))
        return [path for _, path in sorted(found, reverse=True)]


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
    """Puts checkpoints on a store; a disk that is full costs a message, not the training."""

    def __init__(self, store: CheckpointStore, journal: JournalFile, tell: Callable[[str], None]) -> None:
        self.pace = Pace()
        self._store, self._journal, self._tell = store, journal, tell
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
            size = self._store.put(training, step, says, arrays)
        except OSError as error:
            self.pace.wait(_AFTER_FAILURE_SECONDS)
            self._fail(error)
            return
        self._last_seconds = time.monotonic() - began
        self.pace.count(self._last_seconds)
        self._journal.write(CheckpointEvent(training, step, bytes=size, seconds=round(self._last_seconds, 4)))

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._journal.write(CheckpointFailureEvent(reason))
        if reason != self._told:
            self._told = reason
            self._tell(f"No checkpoint could be written ({reason}). Training goes on without.")


@dataclass(frozen=True)
class ChildContext:
    """Journal and checkpoints of a run, and how far down its ladder each of its trainings begins."""

    journal: JournalFile
    store: CheckpointStore
    writer: Writer
    rungs: dict[int, int]

    @classmethod
    def of(cls, job: Job) -> ChildContext:
        """The context of a job."""
        journal, store = JournalFile(Path(job.folder) / JOURNAL), CheckpointStore(Path(job.checkpoints))
        return cls(journal, store, Writer(store, journal, tell), dict(job.rungs))
