"""Steps tried until they go through: on smaller and smaller micro-batches, on the same samples."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from memfit.core.errors import CannotGuard, DoesNotFit
from memfit.core.records import MicroBatchChange, SurvivedOOM
from memfit.core.records.plans import what_a_split_changes
from memfit.core.units import format_size
from memfit.guarding.micro_batch_size import Ladder, Needs
from memfit.guarding.run_notes import RunNotes
from memfit.guarding.splittability import Splittability, examine
from memfit.guarding.step.batches import Batch
from memfit.guarding.step.computation import Computation
from memfit.guarding.step.room import WouldRunOut
from memfit.guarding.step.staged_step import StagedStep
from memfit.machine import (
    host_memory,
    is_oom,
    limit_in_force,
    measure_peak,
    read_oom,
)
from memfit.machine.limits import SPARE_PIECE, bytes_in_use, free_bytes
from memfit.private.tensorflow.graph_defs import maker_of_kernels

Phase = Literal["gradients", "evaluation", "prediction"]

_NAMES: dict[Phase, str] = {
    "gradients": "Step {next}",
    "evaluation": "Evaluation after step {steps}",
    "prediction": "Prediction after step {steps}",
}

_MUCH = 0.125  # of the limit
_FURTHER_DOWN = 2  # halves at once where halving did not help: each try costs ten seconds
_WAIT_SECONDS = 20.0  # as long as TensorFlow waits in two tries
_LOOK_SECONDS = 0.2
_SMALLER = "Going on with micro-batches of {after}, on the same samples: the update is the same."
_AT_ONCE = "Going on with gradients applied as they come and old values on the host: the update is the same."
_ADDED_UP = (
    "Going on with one gradient for each row of an embedding, the sum over its uses: optimizers that square "
    "gradients square that sum, where Keras adds up the squares."
)
_ONCE_MORE = "Trying once more, on the same samples."


@dataclass
class Guarded:
    """One kind of step with the ladder of its micro-batches."""

    computation: Computation
    phase: Phase
    ladder: Ladder = field(default_factory=Ladder)
    examined: Splittability | None = None
    asked: bool = False  # the user named a micro-batch size
    one_phase: bool = False  # whole batches run at once, with old values on the host
    _batches: int = 0  # seen since nothing was decided
    _looks: int = 0

    def is_to_be_examined_again(self, batch: Batch) -> bool:
        """Whether another batch may tell what the last did not; each further look waits twice as long."""
        assert self.examined is not None
        if not self.examined.undecided or batch.size == 1:
            return False
        self._batches += 1
        if self._batches < 1 << self._looks:
            return False
        self._looks += 1
        return True


@dataclass(frozen=True)
class _Failed:
    """A step that ran out: the error is without its frames, which would keep tensors alive."""

    size: int
    oom: Exception
    in_use_bytes: int | None
    in_commit: bool = False


class Guard:
    """Runs steps on batches so that an out-of-memory error costs only time."""

    def __init__(self, journal: RunNotes, *, replay: tuple[MicroBatchChange, ...] = ()) -> None:
        self.notes = journal
        self._replay = replay

    def run(self, guarded: Guarded, batch: Batch) -> Any:
        """One step on one batch, split and tried again as often as it takes; what the step returns."""
        if guarded.phase != "gradients":
            self.notes.begin_other()
        examined = self._examined(guarded, batch)
        self._climb(guarded, batch)
        how = ""
        while True:
            size = self._foreseen_size(guarded, examined, batch)
            in_use, began = bytes_in_use(), time.perf_counter()
            try:
                with SPARE_PIECE.beside_step(), self._measured(guarded.ladder.needs, size):
                    outputs = self._try(guarded, examined, batch, size)
                break
            except WouldRunOut as error:
                self._go_down(guarded, examined, batch, size, error)
                continue
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

    def _try(self, guarded: Guarded, examined: Splittability, batch: Batch, size: int) -> Any:
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
        self, guarded: Guarded, examined: Splittability, batch: Batch, failed: _Failed, *, before: str
    ) -> tuple[int, str]:
        """The size to go on with, and how; raises where there is no way."""
        if self._goes_on_in_one_phase(guarded, examined, batch, failed.size):
            return failed.size, _AT_ONCE
        if failed.in_commit:
            return self._after_commit(guarded, examined, batch, failed)
        smaller = self._step_down(guarded, batch, failed.in_use_bytes)
        if smaller is not None:
            if self._failed_alike(failed):
                for _ in range(_FURTHER_DOWN):
                    smaller = self._step_down(guarded, batch, failed.in_use_bytes) or smaller
            return smaller, _SMALLER
        if before == _ONCE_MORE:
            raise self._nothing_smaller(examined, batch, failed.size, failed.oom) from failed.oom
        return failed.size, _ONCE_MORE

    def _after_commit(
        self, guarded: Guarded, examined: Splittability, batch: Batch, failed: _Failed
    ) -> tuple[int, str]:
        """The way on where an update ran out; raises where gradients are no slices that take less room.

        Slices wait on the host where the batch is split, and can be added up.
        """
        assert examined.staged is not None
        gathered = examined.staged.accumulators
        whole = gathered.has_slices and failed.size == batch.size
        smaller = self._step_down(guarded, batch, failed.in_use_bytes) if whole else None
        if smaller is not None:
            return smaller, _SMALLER
        if gathered.add_up_rows():
            return failed.size, _ADDED_UP
        raise self._does_not_fit("the update of the weights", failed.oom) from failed.oom

    def _failed_alike(self, failed: _Failed) -> bool:
        """Whether the tensor that found no room is that of a larger micro-batch: it does not depend on it."""
        now, steps = read_oom(failed.oom), self.notes.steps
        return now.requested_bytes is not None and any(
            before.step == steps
            and before.micro_batch_size > failed.size
            and (before.error.requested_bytes, before.error.shape) == (now.requested_bytes, now.shape)
            for before in self.notes.ooms[-1:]
        )

    def _goes_on_in_one_phase(
        self, guarded: Guarded, examined: Splittability, batch: Batch, size: int
    ) -> bool:
        """Whether the same batch may fit as plain Keras runs it, where gradients go as soon as they are used.

        That is worth another try only where gradients are a good part of what there is.
        """
        limit_bytes, staged = limit_in_force(), examined.staged
        if guarded.one_phase or size < batch.size or staged is None or limit_bytes is None:
            return False
        guarded.one_phase = staged.gradient_bytes > _MUCH * limit_bytes
        return guarded.one_phase

    def _examined(self, guarded: Guarded, batch: Batch) -> Splittability:
        if guarded.examined is None or guarded.is_to_be_examined_again(batch):
            try:
                guarded.examined = examine(guarded.computation, batch, settled_size=guarded.ladder.start)
            except Exception as error:
                if not is_oom(error):
                    raise
                raise self._does_not_fit("what weights and optimizer need", error) from error
        for note in guarded.examined.notes:
            self.notes.tell_once(note)
        return guarded.examined

    @contextmanager
    def _measured(self, needs: Needs, size: int) -> Iterator[None]:
        """Measure now and then what a step on micro-batches of this size takes."""
        if limit_in_force() is None or not needs.wants(size):
            yield
            return
        with self.notes.peak_kept(), measure_peak() as measured:
            yield
        needs.note(size, measured.over_base_bytes)

    def _foreseen_size(self, guarded: Guarded, examined: Splittability, batch: Batch) -> int:
        """The size of the micro-batches: smaller without a try where a step of that size cannot fit now."""
        while True:
            size = self._size_for(guarded, examined, batch)
            if guarded.ladder.needs.may_fit(size, free_bytes()):
                return size
            smaller = self._step_down(guarded, batch, bytes_in_use())
            if smaller is None:
                return size
            self._tell_smaller(guarded, size, smaller)

    def _go_down(
        self, guarded: Guarded, examined: Splittability, batch: Batch, size: int, reason: WouldRunOut
    ) -> None:
        """Take smaller micro-batches instead of ones that cannot fit; raises where there are none.

        Where there are none, what others hold may go yet, as TensorFlow itself waits for it.
        """
        smaller = self._step_down(guarded, batch, bytes_in_use())
        if smaller is not None:
            self._tell_smaller(guarded, size, smaller)
        elif examined.without_xla():
            self.notes.tell("What XLA would lay out for a step does not fit: going on without XLA.")
        elif not _comes_free(reason.needed_bytes):
            raise self._nothing_smaller(examined, batch, size, reason) from reason

    def _tell_smaller(self, guarded: Guarded, size: int, smaller: int) -> None:
        if guarded.phase == "gradients":
            next_step = self.notes.steps + 1
            how = _SMALLER.format(after=smaller)
            self.notes.tell(f"Step {next_step} does not fit at micro-batch {size}, and was not tried. {how}")

    def _climb(self, guarded: Guarded, batch: Batch) -> None:
        if guarded.ladder.step_up(bytes_in_use(), free_bytes()) and guarded.phase == "gradients":
            size = guarded.ladder.size_for(batch.size)
            self.notes.tell(f"Less memory is in use again: back to micro-batches of {size}.")

    def _size_for(self, guarded: Guarded, examined: Splittability, batch: Batch) -> int:
        size = guarded.ladder.size_for(batch.size)
        if self._replay and guarded.phase == "gradients":
            past = [change for change in self._replay if change.step <= self.notes.steps]
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
        oom, steps = read_oom(error), self.notes.steps
        what = _NAMES[guarded.phase].format(next=steps + 1, steps=steps)
        lost = f"{seconds:.0f} s were lost, no sample was."
        note = f"{what} ran out of memory at micro-batch {before}, {oom.describe()}. {how} {lost}"
        self.notes.survived(SurvivedOOM(steps, guarded.phase, before, after, seconds, oom), note)
        assert guarded.examined is not None
        if guarded.examined.without_xla():
            self.notes.tell("After an out-of-memory error XLA may abort the process: going on without XLA.")

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
            self.notes.survived(
                SurvivedOOM(self.notes.steps, "commit", size, size, seconds, oom),
                f"The update of step {self.notes.steps + 1} ran out {oom.describe()} and was taken back. "
                "It went through with the old weights copied to the host.",
            )

    def _note(
        self, guarded: Guarded, examined: Splittability, size: int, batch_size: int, seconds: float
    ) -> None:
        if guarded.phase != "gradients":
            return
        if self.notes.note_micro_batch(size, batch_size) and size < batch_size:
            for note in _changes_by_split(examined.staged):
                self.notes.tell_once(note)
        self.notes.count_step(seconds)

    def _nothing_smaller(
        self, examined: Splittability, batch: Batch, size: int, error: Exception
    ) -> DoesNotFit:
        reason = examined.why_not_split or batch.why_not_split
        if reason is not None:
            what = f"a step on {batch.size} samples"
            return self._does_not_fit(what, error, f"It cannot be split: {reason}.", onednn=_other_world())
        what = "a step on one sample" if size == 1 else f"a step on micro-batches of {size}"
        return self._does_not_fit(what, error, onednn=_other_world())

    def _does_not_fit(
        self, what: str, error: Exception, *reasons: str, onednn: bool | None = None
    ) -> DoesNotFit:
        limit_bytes = limit_in_force()
        limit = "no limit is in force" if limit_bytes is None else f"the limit is {format_size(limit_bytes)}"
        return DoesNotFit(
            f"{what} does not fit: {limit}.",
            str(error) if isinstance(error, WouldRunOut) else f"It ran out {read_oom(error).describe()}.",
            *reasons,
            *_other_kernels(onednn, limit_bytes),
            f"The model is as it was after step {self.notes.steps}.",
            suggestion=_more_room(limit_bytes),
            limit_bytes=limit_bytes,
            onednn=onednn,
        )


def _other_world() -> bool | None:
    """Whether other kernels would be those of oneDNN; None on a GPU, which has no others."""
    maker = maker_of_kernels()
    return None if maker == "GPU" else maker != "oneDNN"


def _other_kernels(onednn: bool | None, limit_bytes: int | None) -> Iterator[str]:
    if onednn is not None and limit_bytes is not None:
        line = f'memfit.limit("{limit_bytes >> 20}MiB", onednn={onednn})'
        yield f"Other kernels may need less: {line} before TensorFlow is imported."


def _comes_free(needed_bytes: int) -> bool:
    """Wait until so many bytes are free on the device; whether they are."""
    limit_bytes = limit_in_force()
    if limit_bytes is None or needed_bytes > limit_bytes:
        return False
    ends = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < ends:
        gc.collect()
        if (free_bytes() or 0) >= needed_bytes:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


class _CommitRanOut(Exception):
    """An update that does not fit although the gradients did; nothing has changed."""

    def __init__(self, oom: Exception) -> None:
        super().__init__(str(oom))
        self.oom = oom


def _changes_by_split(step: StagedStep | None) -> list[str]:
    """The notes on what a split changes, from the variables that a step has moved."""
    if step is None:
        return []
    moves = step.stage.moves
    return what_a_split_changes(normalises=moves("moving_mean"), draws=moves("seed_generator_state"))


def _more_room(limit_bytes: int | None) -> str:
    """Twice the limit where the machine has it; else all that is left is a smaller model."""
    if limit_bytes is None or 2 * limit_bytes > host_memory().usable_total_bytes:
        return "a smaller model or smaller samples; memfit doctor shows the memory there is"
    return f'memfit.limit("{2 * limit_bytes >> 20}MiB")'
