"""The notes of a guarded training, written down as it happens, and the observer of what happens."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from memfit.core.errors import NotMeasurable
from memfit.core.records import Budget, MicroBatchChange, Plan, Run, SurvivedOOM
from memfit.guarding.step.batches import Batch
from memfit.machine import device_memory, reset_peak

logger = logging.getLogger("memfit")

_WARM = 2
_TIMED = 256


class RunNotes:
    """Collects what a Run record says, and says aloud what the user has to know."""

    def __init__(self, budget: Budget) -> None:
        self.steps = 0
        self.plan: Plan | None = None
        self._budget = budget
        self._micro_batches: list[MicroBatchChange] = []
        self._ooms: list[SurvivedOOM] = []
        self._notes: list[str] = []
        self._seconds = deque[float](maxlen=_TIMED)  # of the last steps
        self._most_bytes = 0  # the device's peak before it was counted anew
        self._step_peak: int | None = None
        self._only_steps = True

    def run(self) -> Run:
        """The record of the run so far."""
        return Run(
            budget=self._budget,
            steps=self.steps,
            micro_batches=tuple(self._micro_batches),
            ooms=tuple(self._ooms),
            peak_bytes=self._peak(),
            notes=tuple(self._notes),
            plan=self.plan,
            seconds_per_step=statistics.median(self._seconds) if self._seconds else None,
            step_peak_bytes=self._peak_of_steps(),
        )

    @property
    def ooms(self) -> tuple[SurvivedOOM, ...]:
        """The out-of-memory errors so far."""
        return tuple(self._ooms)

    @property
    def micro_batch_size(self) -> int | None:
        """That of the last step; None before the first."""
        return self._micro_batches[-1].micro_batch_size if self._micro_batches else None

    def count_step(self, seconds: float) -> None:
        """A training step that went through; the first ones are not timed, since they are traced."""
        self.steps += 1
        if self.steps > _WARM:
            self._seconds.append(seconds)

    def begin_other(self) -> None:
        """Something else than a training step is going to run: from here on the peak may be its own."""
        self._step_peak, self._only_steps = self._peak_of_steps(), False

    def _peak_of_steps(self) -> int | None:
        """The device's peak as long as nothing but training steps has run; None before the first."""
        return (self._peak() if self.steps else None) if self._only_steps else self._step_peak

    @contextmanager
    def peak_kept(self) -> Iterator[None]:
        """Let the device's peak be counted anew in here: what it was before is not forgotten."""
        self._most_bytes = self._peak() or 0
        try:
            yield
        finally:
            self._most_bytes = self._peak() or 0

    def _peak(self) -> int | None:
        """The device's peak since it was first counted; None where it is not counted."""
        now = read_peak()
        return None if now is None else max(now, self._most_bytes)

    def survived(self, oom: SurvivedOOM, note: str) -> None:
        """An out-of-memory error that training goes on after."""
        self._ooms.append(oom)
        self.tell(note)

    def tell(self, note: str) -> None:
        """Say something, once for each time."""
        self._notes.append(note)
        logger.warning("%s", note)

    def tell_once(self, note: str) -> None:
        """Say something that stays true."""
        if note not in self._notes:
            self.tell(note)

    def note_micro_batch(self, size: int, batch_size: int) -> bool:
        """Write down the micro-batch of a step where it is not what was written last; whether it was not."""
        before = self._micro_batches[-1].micro_batch_size if self._micro_batches else None
        if before is not None and size == min(before, batch_size):
            return False
        self._micro_batches.append(MicroBatchChange(self.steps, size))
        return True


def start_counting_the_peak() -> None:
    """Count the device's peak from here on, where it is counted."""
    try:
        reset_peak()
    except NotMeasurable:
        return


def read_peak() -> int | None:
    """The device's peak since then; None where it is not counted."""
    try:
        return device_memory().peak_bytes
    except NotMeasurable:
        return None


class Observer(Protocol):
    """An observer of a guarded training: it sees the guard and the batches."""

    def attached(self, protection: Any) -> None:
        """A guard stands before the model from now on."""
        ...

    def saw(self, batch: Batch) -> None:
        """A batch is about to be trained on."""
        ...


_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


def observer_in_force() -> Observer | None:
    """The observer of trainings that begin here and now."""
    return _OBSERVER.get()


@contextmanager
def observed_by(one: Observer) -> Iterator[None]:
    """Let an observer see the trainings that begin in here."""
    token = _OBSERVER.set(one)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
