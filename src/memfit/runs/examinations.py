"""Before the first step: can it be staged, can its batches be split, and if not, why not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

from memfit.devices import is_oom
from memfit.runs import keras_internals
from memfit.runs.batches import Batch
from memfit.runs.computations import Computation, is_keras_own
from memfit.runs.graphs import graph
from memfit.runs.probes import Probe
from memfit.runs.rollbacks import RolledBackStep
from memfit.runs.shares import Weighing
from memfit.runs.steps import StagedStep, flatten, pack, specs_of

_ROWS = (8, 3, 2)  # samples to try it on


@dataclass
class Examined:
    """A step that is ready to run, and what its user has to know beforehand."""

    step: StagedStep | RolledBackStep
    why_not_split: str | None = None
    notes: list[str] = field(default_factory=list)


def examine(computation: Computation, batch: Batch) -> Examined:
    """Build what a step needs, trace it, and find out what it allows; nothing is run but a few samples."""
    model = computation.model
    with nullcontext() if model is None else keras_internals.optimizers_kept_whole(model):
        _build(computation, batch)
        step = StagedStep(computation)
        unstaged = _why_not_staged(step, batch)
        if unstaged:
            return Examined(RolledBackStep(computation), unstaged[0], _notes_on_rollback(unstaged))
    reasons = [batch.why_not_split, computation.why_not_split(), *step.hindrances]
    reason = next(filter(None, reasons), None)
    if reason is not None or computation.doubts() is None:
        return Examined(step, reason, _notes_on_whole(reason))
    return _probed(computation, batch, step)


def _probed(computation: Computation, batch: Batch, step: StagedStep) -> Examined:
    if batch.size == 1:
        return Examined(step, "its batches have one sample")
    try:
        probe, weighing, reason = _probe(computation, batch)
    except Exception as error:  # noqa: BLE001 - whatever a user's step may raise on a few samples
        reason = f"trying it on a few samples failed ({_first_line(error)})"
        return Examined(step, reason, _notes_on_whole(reason))
    if weighing.gradients != step.weighing.gradients or weighing.observed:
        step = StagedStep(computation, weighing)
        _why_not_staged(step, batch)
    else:
        step.weighing = weighing
    return Examined(step, reason, probe.notes if reason is None else _notes_on_whole(reason))


def _probe(computation: Computation, batch: Batch) -> tuple[Probe, Weighing, str | None]:
    """Try how parts add up, on fewer samples where memory is short."""
    for rows in _ROWS:
        probe = Probe(computation, batch, rows=min(batch.size, rows))
        try:
            return (probe, *probe.weigh())
        except Exception as error:
            if rows == _ROWS[-1] or not is_oom(error):
                raise
    raise AssertionError("unreachable")


def _why_not_staged(step: StagedStep, batch: Batch) -> list[str]:
    """Trace the step on a stage; what stands against that, if anything."""
    try:
        foreign = step.prepare(batch.part(0, batch.size))
    except Exception as error:
        if step.unstaged:
            return step.unstaged
        if is_oom(error) or step.computation.doubts() is None:
            raise
        return [f"it cannot be traced on a stage ({_first_line(error)})"]
    return [*step.unstaged, *foreign]


def _build(computation: Computation, batch: Batch) -> None:
    """Create every variable before the first step, from the shapes of a batch; nothing is computed."""
    model = computation.model
    if model is None:
        return
    own = all(is_keras_own(model, name) for name in ("train_step", "test_step", "compute_loss"))
    if own and getattr(model, "compiled", False):
        try:
            keras_internals.build_everything(model, batch.part(0, min(batch.size, 2)))
            return
        except Exception as error:  # some models want to know the size of the batch
            if is_oom(error) or computation.doubts() is None:
                raise
    if not keras_internals.is_built(model):
        _trace_plain(computation, batch)


def _trace_plain(computation: Computation, batch: Batch) -> None:
    """Trace the step as it is and throw the trace away: what it needs is created on the way."""
    structure, leaves = flatten(batch.part(0, batch.size))

    def trace(*, open_batch: bool) -> None:
        function = graph(lambda tensors: computation.run_plain(pack(structure, tensors)))
        function.get_concrete_function(specs_of(leaves, open_batch=open_batch))

    try:
        trace(open_batch=True)
    except Exception as error:  # some steps want to know the size of the batch
        if is_oom(error):
            raise
        trace(open_batch=False)


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
