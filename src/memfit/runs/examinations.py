"""Before the first step: can it be staged, can its batches be split, and if not, why not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from memfit.devices import is_oom
from memfit.errors import CannotGuard
from memfit.runs import keras_internals
from memfit.runs.batches import Batch
from memfit.runs.computations import Computation, is_keras_own
from memfit.runs.graphs import graph
from memfit.runs.probes import Probe
from memfit.runs.rollbacks import RolledBackStep
from memfit.runs.steps import StagedStep, flatten, pack, specs_of


@dataclass
class Examined:
    """A step that is ready to run, and what its user has to know beforehand."""

    step: StagedStep | RolledBackStep
    why_not_split: str | None = None
    notes: list[str] = field(default_factory=list)


def examine(computation: Computation, batch: Batch) -> Examined:
    """Build what a step needs, trace it, and find out what it allows; nothing is run but three samples."""
    model = computation.model
    with nullcontext() if model is None else keras_internals.optimizers_kept_whole(model):
        _build(computation, batch)
        step = StagedStep(computation)
        unstaged = _why_not_staged(step, batch)
        if unstaged:
            return Examined(RolledBackStep(computation), unstaged[0], _notes_on_rollback(unstaged))
    reason = batch.why_not_split or fixed_batch(computation.model) or next(iter(step.hindrances), None)
    if reason is not None or computation.doubts() is None:
        return Examined(step, reason, _notes_on_whole(reason))
    return _probed(computation, batch, step)


def _probed(computation: Computation, batch: Batch, step: StagedStep) -> Examined:
    if batch.size == 1:
        return Examined(step, "its batches have one sample")
    probe = Probe(computation, batch)
    try:
        weighing, reason = probe.weigh()
    except Exception as error:  # whatever a user's step may raise on three samples
        if isinstance(error, CannotGuard):
            raise
        reason = f"trying it on three samples failed ({_first_line(error)})"
        return Examined(step, reason, _notes_on_whole(reason))
    if weighing.gradients != step.weighing.gradients or weighing.observed:
        step = StagedStep(computation, weighing)
        _why_not_staged(step, batch)
    else:
        step.weighing = weighing
    return Examined(step, reason, [*_notes_on_whole(reason), *probe.notes])


def _why_not_staged(step: StagedStep, batch: Batch) -> list[str]:
    """Trace the step on a stage; what stands against that, if anything."""
    try:
        foreign = step.prepare(batch.part(0, batch.size))
    except CannotGuard as error:
        return [str(error).splitlines()[0]]
    except Exception as error:
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
        keras_internals.build_everything(model, batch.part(0, min(batch.size, 2)))
    elif not keras_internals.is_built(model):
        _trace_plain(computation, batch)


def _trace_plain(computation: Computation, batch: Batch) -> None:
    """Trace the step as it is and throw the trace away: what it needs is created on the way."""
    structure, leaves = flatten(batch.part(0, batch.size))
    function = graph(lambda tensors: computation.run_plain(pack(structure, tensors)))
    try:
        function.get_concrete_function(specs_of(leaves, open_batch=True))
    except Exception as error:
        if is_oom(error):
            raise
        function.get_concrete_function(specs_of(leaves, open_batch=False))


def fixed_batch(model: Any) -> str | None:
    """What in a model ties it to one batch size."""
    if model is None:
        return None
    if any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        return "its inputs have a fixed batch size"
    if any(getattr(layer, "stateful", False) for layer in keras_internals.all_layers(model)):
        return "a layer carries state from one batch to the next"
    return None


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
