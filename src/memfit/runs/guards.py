"""Steps tried until they go through: on smaller and smaller micro-batches, on the same samples."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from memfit.devices import host_memory, is_oom, limit_in_force, read_oom
from memfit.errors import CannotGuard, DoesNotFit
from memfit.records import MicroBatchChange, SurvivedOOM
from memfit.runs.batches import Batch
from memfit.runs.computations import Computation
from memfit.runs.examinations import Examined, examine
from memfit.runs.journals import Journal
from memfit.runs.ladders import Ladder
from memfit.runs.steps import StagedStep
from memfit.runs.waybacks import bytes_in_use
from memfit.units import format_size

Phase = Literal["gradients", "evaluation", "prediction"]

_NAMES: dict[Phase, str] = {
    "gradients": "Step {next}",
    "evaluation": "Evaluation after step {steps}",
    "prediction": "Prediction after step {steps}",
}

_MUCH = 0.125  # of the limit
_SMALLER = "Going on with micro-batches of {after}, on the same samples: the update is the same."
_AT_ONCE = "Going on with gradients applied as they come and old values on the host: the update is the same."
_ONCE_MORE = "Trying once more, on the same samples."


@dataclass
class Guarded:
    """One kind of step with the ladder of its micro-batches."""

    computation: Computation
    phase: Phase
    ladder: Ladder = field(default_factory=Ladder)
    examined: Examined | None = None
    asked: bool = False  # the user named a micro-batch size
    one_phase: bool = False  # whole batches run at once, with old values on the host


@dataclass(frozen=True)
class _Failed:
    """A step that ran out: the error is without its frames, which would keep tensors alive."""

    size: int
    oom: Exception
    in_use_bytes: int | None
    in_commit: bool = False


class Guard:
    """Runs steps on batches so that an out-of-memory error costs only time."""

    def __init__(self, journal: Journal, *, replay: tuple[MicroBatchChange, ...] = ()) -> None:
        self.journal = journal
        self._replay = replay

    def run(self, guarded: Guarded, batch: Batch) -> Any:
        """One step on one batch, split and tried again as often as it takes; what the step returns."""
        if guarded.phase != "gradients":
            self.journal.begin_other()
        examined = self._examined(guarded, batch)
        self._climb(guarded, batch)
        how = ""
        while True:
            size = self._size_for(guarded, examined, batch)
            in_use, began = bytes_in_use(), time.perf_counter()
            try:
                outputs = self._try(guarded, examined, batch, size)
                break
            except _CommitRanOut as error:
                failed = _Failed(size, error.oom.with_traceback(None), in_use, in_commit=True)
            except Exception as error:
                if not is_oom(error):
                    raise
                failed = _Failed(size, error.with_traceback(None), in_use)
            seconds = time.perf_counter() - began
            after, how = self._way_on(guarded, examined, batch, failed, before=how)
            self._tell_oom(guarded, failed.oom, size, after, how.format(after=after), seconds)
            gc.collect()
        self._note(guarded, examined, size, batch.size, time.perf_counter() - began)
        return outputs

    def _try(self, guarded: Guarded, examined: Examined, batch: Batch, size: int) -> Any:
        """Run the step once: whole where that costs no more memory than in two phases, else on the stage."""
        staged = examined.staged
        if size == batch.size:
            on_host = guarded.one_phase
            ran, outputs = examined.whole.run(batch, if_affordable=staged is not None, on_host=on_host)
            if ran:
                return outputs
        assert staged is not None
        outputs = staged.gather(batch, size)
        self._commit(staged, size)
        return outputs

    def _way_on(
        self, guarded: Guarded, examined: Examined, batch: Batch, failed: _Failed, *, before: str
    ) -> tuple[int, str]:
        """The size to go on with, and how; raises where there is no way."""
        if self._goes_on_in_one_phase(guarded, examined, batch, failed.size):
            return failed.size, _AT_ONCE
        if failed.in_commit:
            raise self._does_not_fit("the update of the weights", failed.oom) from failed.oom
        smaller = self._step_down(guarded, batch, failed.in_use_bytes)
        if smaller is not None:
            return smaller, _SMALLER
        if before == _ONCE_MORE:
            raise self._nothing_smaller(examined, batch, failed.size, failed.oom) from failed.oom
        return failed.size, _ONCE_MORE

    def _goes_on_in_one_phase(self, guarded: Guarded, examined: Examined, batch: Batch, size: int) -> bool:
        """Whether the same batch may fit as plain Keras runs it, where gradients go as soon as they are used.

        That is worth another try only where gradients are a good part of what there is.
        """
        limit_bytes, staged = limit_in_force(), examined.staged
        if guarded.one_phase or size < batch.size or staged is None or limit_bytes is None:
            return False
        guarded.one_phase = staged.gradient_bytes > _MUCH * limit_bytes
        return guarded.one_phase

    def _examined(self, guarded: Guarded, batch: Batch) -> Examined:
        if guarded.examined is None or (guarded.examined.too_small and batch.size > 1):
            try:
                guarded.examined = examine(guarded.computation, batch, settled_size=guarded.ladder.start)
            except Exception as error:
                if not is_oom(error):
                    raise
                raise self._does_not_fit("what weights and optimizer need", error) from error
        for note in guarded.examined.notes:
            self.journal.tell_once(note)
        return guarded.examined

    def _climb(self, guarded: Guarded, batch: Batch) -> None:
        if guarded.ladder.step_up(bytes_in_use()) and guarded.phase == "gradients":
            size = guarded.ladder.size_for(batch.size)
            self.journal.tell(f"Less memory is in use again: back to micro-batches of {size}.")

    def _size_for(self, guarded: Guarded, examined: Examined, batch: Batch) -> int:
        size = guarded.ladder.size_for(batch.size)
        if self._replay and guarded.phase == "gradients":
            past = [change for change in self._replay if change.step <= self.journal.steps]
            size = min(past[-1].micro_batch_size if past else batch.size, batch.size)
        reason = examined.why_not_split or batch.why_not_split
        if reason is None or size == batch.size:
            return size
        if guarded.asked:
            raise CannotGuard(
                f"a batch of {batch.size} would have to be split, but {reason}",
                suggestion=f"batch_size={size}",
            )
        return batch.size

    def _step_down(self, guarded: Guarded, batch: Batch, in_use_bytes: int | None) -> int | None:
        assert guarded.examined is not None
        repeats = self._replay and guarded.phase == "gradients"
        if repeats or guarded.examined.why_not_split or batch.why_not_split:
            return None
        return guarded.ladder.step_down(batch.size, in_use_bytes)

    def _tell_oom(
        self, guarded: Guarded, error: Exception, before: int, after: int, how: str, seconds: float
    ) -> None:
        oom, steps = read_oom(error), self.journal.steps
        what = _NAMES[guarded.phase].format(next=steps + 1, steps=steps)
        lost = f"{seconds:.0f} s were lost, no sample was."
        note = f"{what} ran out of memory at micro-batch {before}, {oom.describe()}. {how} {lost}"
        self.journal.survived(SurvivedOOM(steps, guarded.phase, before, after, seconds, oom), note)
        assert guarded.examined is not None
        if guarded.examined.without_xla():
            self.journal.tell("After an out-of-memory error XLA may abort the process: going on without XLA.")

    def _commit(self, staged: StagedStep, size: int) -> None:
        began = time.perf_counter()
        try:
            survived = staged.commit()
        except Exception as error:
            if not is_oom(error):
                raise
            raise _CommitRanOut(error) from error
        if survived is not None:
            oom, seconds = read_oom(survived), time.perf_counter() - began
            self.journal.survived(
                SurvivedOOM(self.journal.steps, "commit", size, size, seconds, oom),
                f"The update of step {self.journal.steps + 1} ran out {oom.describe()} and was taken back. "
                "It went through with the old weights copied to the host.",
            )

    def _note(self, guarded: Guarded, examined: Examined, size: int, batch_size: int, seconds: float) -> None:
        if guarded.phase != "gradients":
            return
        if self.journal.note_micro_batch(size, batch_size) and size < batch_size:
            for note in what_a_split_changes(examined.staged):
                self.journal.tell_once(note)
        self.journal.count_step(seconds)

    def _nothing_smaller(self, examined: Examined, batch: Batch, size: int, error: Exception) -> DoesNotFit:
        reason = examined.why_not_split or batch.why_not_split
        if reason is not None:
            what = f"a step on {batch.size} samples"
            return self._does_not_fit(what, error, f"It cannot be split: {reason}.")
        return self._does_not_fit(
            "a step on one sample" if size == 1 else f"a step on micro-batches of {size}", error
        )

    def _does_not_fit(self, what: str, error: Exception, *reasons: str) -> DoesNotFit:
        limit_bytes = limit_in_force()
        limit = "no limit is in force" if limit_bytes is None else f"the limit is {format_size(limit_bytes)}"
        return DoesNotFit(
            f"{what} does not fit: {limit}.",
            f"It ran out {read_oom(error).describe()}.",
            *reasons,
            f"The model is as it was after step {self.journal.steps}.",
            suggestion=_more_room(limit_bytes),
            limit_bytes=limit_bytes,
        )


class _CommitRanOut(Exception):
    """An update that does not fit although the gradients did; nothing has changed."""

    def __init__(self, oom: Exception) -> None:
        super().__init__(str(oom))
        self.oom = oom


def what_a_split_changes(step: StagedStep | None) -> list[str]:
    """What is not the same any more when batches are split, in words; empty when everything is."""
    notes = []
    if step is not None and step.stage.moves("moving_mean"):
        notes.append("BatchNormalization takes its statistics from micro-batches.")
    if step is not None and step.stage.moves("seed_generator_state"):
        notes.append("Random layers such as Dropout draw for each micro-batch.")
    return notes


def _more_room(limit_bytes: int | None) -> str:
    """Twice the limit where the machine has it; else all that is left is a smaller model."""
    if limit_bytes is None or 2 * limit_bytes > host_memory().usable_total_bytes:
        return "a smaller model or smaller samples; memfit doctor shows the memory there is"
    return f'memfit.limit("{2 * limit_bytes >> 20}MiB")'
