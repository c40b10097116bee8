"""Before the first step: can it be staged, can its batches be split, and if not, why not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from memfit.guarding.split_trial import NOTHING_TO_TELL, SplitTrial
from memfit.guarding.step.batches import Batch
from memfit.guarding.step.computation import Computation, ModelStep
from memfit.guarding.step.loss_weights import Weighing
from memfit.guarding.step.rollback import optimizers_kept_whole
from memfit.guarding.step.room import WouldRunOut
from memfit.guarding.step.staged_step import StagedStep, flatten, pack, specs_of
from memfit.guarding.step.unsplit_step import WholeStep
from memfit.machine import is_oom
from memfit.machine.limits import free_bytes
from memfit.model.snapshots import draws_put_back
from memfit.model.traced_functions import traced
from memfit.model.training_data import is_keras_own
from memfit.private.keras.trainer import CALLS_THAT_BUILD, build_everything, is_built

_ROWS = (8, 3, 2)  # samples to try it on


@dataclass
class Splittability:
    """A step that is ready to run whole and, where that is possible, in parts."""

    computation: Computation
    why_not_split: str | None = None
    notes: list[str] = field(default_factory=list)  # what the user has to know beforehand
    staged: StagedStep | None = None
    undecided: bool = False  # the batch that it was examined on does not tell; another one may

    @cached_property
    def whole(self) -> WholeStep:
        """The step on whole batches."""
        return WholeStep(self.computation, static=_wants_static_batches(self.computation))

    def without_xla(self) -> bool:
        """Go on without XLA; False if it was off."""
        was_on = self.whole.without_xla()
        return (self.staged is not None and self.staged.without_xla()) or was_on


def examine(computation: Computation, batch: Batch, *, settled_size: int | None = None) -> Splittability:
    """Build what a step needs, and find out what it allows; nothing is run but a few samples, on a stage.

    What consists of Keras' own parts is known to add up; it is traced on a stage only when it is split.
    """
    model = computation.model
    with nullcontext() if model is None else optimizers_kept_whole(model):
        build_for(computation, batch)
        if computation.doubts() is None:
            reason = computation.why_not_split()
            notes = _notes_on_whole(reason or batch.why_not_split)
            return Splittability(
                computation, reason, notes, StagedStep(computation, settled_size=settled_size)
            )
        step = StagedStep(computation, settled_size=settled_size)
        unstaged = _why_not_staged(step, batch)
    if unstaged:
        return Splittability(computation, unstaged[0], _notes_on_rollback(unstaged))
    reasons = [batch.why_not_split, computation.why_not_split(), *step.hindrances]
    reason = next(filter(None, reasons), None)
    if reason is not None:
        return Splittability(computation, reason, _notes_on_whole(reason), step)
    return _tried(computation, batch, step)


def _wants_static_batches(computation: Computation) -> bool:
    """Whether plain Keras would know the size of the batch: some metrics depend on it, and it saves time."""
    return isinstance(computation, ModelStep) and computation.weighs_outputs_by_samples


def _tried(computation: Computation, batch: Batch, step: StagedStep) -> Splittability:
    if batch.size == 1:
        return Splittability(computation, "its batches have one sample", staged=step, undecided=True)
    try:
        _make_sure_of_room(step)
        trial, weighing, reason = _trial(computation, batch)
    except Exception as error:  # noqa: BLE001 - whatever a user's step may raise on a few samples
        reason = _why_not_tried(error)
        return Splittability(computation, reason, _notes_on_whole(reason), step)
    if weighing != step.weighing:
        step = StagedStep(computation, weighing, settled_size=step.settled_size)
    step.once |= trial.once
    notes = trial.notes if reason is None else _notes_on_whole(reason)
    return Splittability(computation, reason, notes, step, undecided=reason == NOTHING_TO_TELL)


def _why_not_tried(error: Exception) -> str:
    if isinstance(error, WouldRunOut):
        return f"there is no room to try it on a few samples. {error}".removesuffix(".")
    how = "ran out of memory" if is_oom(error) else f"failed ({_first_line(error)})"
    return f"trying it on a few samples {how}"


def _make_sure_of_room(step: StagedStep) -> None:
    """Raise where not even the gradients fit: each try would wait for ten seconds, several times over."""
    free, needed = free_bytes(), step.gradient_bytes
    if free is not None and needed > free and not step.accumulators.has_slices:
        raise WouldRunOut(needed, free)


def _trial(computation: Computation, batch: Batch) -> tuple[SplitTrial, Weighing, str | None]:
    """Try how parts add up, on fewer samples where memory is short."""
    for rows in _ROWS:
        trial = SplitTrial(computation, batch, rows=min(batch.size, rows))
        try:
            return (trial, *trial.weigh())
        except Exception as error:
            if rows == _ROWS[-1] or not is_oom(error):
                raise
    raise AssertionError("unreachable")


def _why_not_staged(step: StagedStep, batch: Batch) -> list[str]:
    """Trace the step on a stage; what stands against that, if anything."""
    try:
        foreign = step.prepare(batch.part(0, min(batch.size, step.settled_size or batch.size)))
    except Exception as error:
        if step.unstaged:
            return step.unstaged
        if is_oom(error):
            raise
        return [f"it cannot be traced on a stage ({_first_line(error)})"]
    return [*step.unstaged, *foreign]


def build_for(computation: Computation, batch: Batch) -> None:
    """Create every variable before the first step, from the shapes of a batch; nothing is computed."""
    model = computation.model
    if model is None:
        return
    evaluates = isinstance(computation, ModelStep)
    trains = isinstance(computation, ModelStep) and computation.trains
    if not model.built:
        computation.draws.thrown_away = CALLS_THAT_BUILD
    own = all(is_keras_own(model, name) for name in ("train_step", "test_step", "compute_loss"))
    if trains and own:
        try:
            with draws_put_back():
                build_everything(model, batch.part(0, min(batch.size, 2)))
            return
        except Exception as error:  # some models want to know the size of the batch
            if is_oom(error) or computation.doubts() is None:
                raise
    if not is_built(model, trains=trains, evaluates=evaluates):
        _trace_plain(computation, batch)


def _trace_plain(computation: Computation, batch: Batch) -> None:
    """Trace the step as it is and throw the trace away: what it needs is created on the way."""
    structure, leaves = flatten(batch.part(0, batch.size))

    def trace(*, open_batch: bool) -> None:
        specs = specs_of(leaves, open_batch=open_batch)
        traced(lambda tensors: computation.run_plain(pack(structure, tensors)), specs)

    try:
        trace(open_batch=True)
    except Exception as error:  # some steps want to know the size of the batch
        if is_oom(error):
            raise
        try:
            trace(open_batch=False)
        except Exception as second:
            if is_oom(second) or not computation.eager:
                raise

            # What runs eagerly may not be traceable at all: then the first step creates what it needs.


def _notes_on_whole(reason: str | None) -> list[str]:
    return [] if reason is None else [f"Batches are not split: {reason}. Each step is guarded whole."]


def _notes_on_rollback(reasons: list[str]) -> list[str]:
    notes = [
        f"Batches are not split: {reasons[0]}. Each step is guarded whole: if it runs out of memory, "
        "every variable goes back to where it was."
    ]
    return [*notes, *(f"Not exact after an out-of-memory error: {r}." for r in reasons if "second try" in r)]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
