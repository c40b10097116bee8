"""A step on a whole batch, run as it is, with a way back for every variable that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memfit.guarding.step.accumulators import distinct
from memfit.guarding.step.batches import Batch, Structure
from memfit.guarding.step.computation import Computation
from memfit.guarding.step.rollback import (
    NOT_WORTH_RELEASING_BYTES,
    Reversible,
    interrupts_held_back,
    reserve_bytes,
)
from memfit.guarding.step.staged_step import MayUseXLA, flatten, pack, specs_of
from memfit.machine import is_oom
from memfit.machine.limits import free_bytes
from memfit.model.traced_functions import Graph
from memfit.private.keras.trainer import optimizers_of
from memfit.private.tensorflow.variables import backing_variable


@dataclass
class _Traced:
    """The step traced for some shapes of data."""

    specs: list[Any]
    step: Reversible
    release: Any
    old_bytes: int
    affordable: bool

    def takes(self, leaves: list[Any]) -> bool:
        return all(spec.is_compatible_with(leaf) for spec, leaf in zip(self.specs, leaves, strict=True))


class WholeStep(MayUseXLA):
    """Runs the step itself on the whole batch; if it fails, every variable that it writes goes back.

    This is what plain Keras does, and as fast. The old values of all that it writes stay until it is through,
    so it is for models with few weights, and for steps that cannot run on a stage.
    """

    def __init__(self, computation: Computation, *, static: bool = False) -> None:
        self.computation = computation
        self.jit_compile = computation.jit_compile
        self._static = static
        self._traces: dict[str, list[_Traced]] = {}
        self._needed_bytes = 0

    def run(self, batch: Batch, *, if_affordable: bool, on_host: bool = False) -> tuple[bool, Any]:
        """Run the step on all of the batch at once: whether it did, and what it returned.

        It is affordable where old values take no more than the reserve; else two phases need less memory,
        but where old values are held on the host: that needs the least of all, and time to copy them.
        """
        structure, leaves = flatten(batch.part(0, batch.size))
        traced = self._traced(structure, leaves)
        if if_affordable and not traced.affordable and not on_host:
            return False, None
        free = free_bytes()
        traced.step.need.check(batch.size, free)
        on_host = (on_host and not traced.affordable) or (
            free is not None and free <= max(self._needed_bytes, traced.old_bytes)
        )
        with interrupts_held_back():
            try:
                outputs = traced.step.run(leaves, on_host=on_host)
            except BaseException as error:
                traced.release()
                if free is not None and is_oom(error):
                    self._needed_bytes = free + 1  # with as little room as this, old values go to the host
                raise
            if traced.old_bytes > NOT_WORTH_RELEASING_BYTES:
                traced.release()
        return True, outputs

    def _traced(self, structure: Structure, leaves: list[Any]) -> _Traced:
        traces = self._traces.setdefault(str(structure), [])
        found = next((traced for traced in traces if traced.takes(leaves)), None)
        if found is None or self.computation.eager:  # an eager step may have created more variables
            found = self.computation.draws.as_in_keras(lambda: self._traced_anew(structure, leaves))
            traces[:] = [found] if self.computation.eager else [*traces, found]
        return found

    def _traced_anew(self, structure: Structure, leaves: list[Any]) -> _Traced:
        specs = specs_of(leaves, open_batch=not self._static)
        try:
            step = self._trace(structure, specs)
        except Exception as error:
            if is_oom(error) or self._static:
                raise
            # Some steps want to know the size of the batch: then each size gets a trace of its own.
            specs = specs_of(leaves, open_batch=False)
            step = self._trace(structure, specs)
            self._static = True
        release = step.way_back.release
        if not self.computation.eager:
            release = Graph(release, [])
        old_bytes = step.way_back.bytes
        return _Traced(specs, step, release, old_bytes, old_bytes <= reserve_bytes())

    def _trace(self, structure: Structure, specs: list[Any]) -> Reversible:
        def step(tensors: list[Any]) -> Any:
            return self.computation.run_plain(pack(structure, tensors))

        changing = self._all_known() if self.computation.eager else None
        return Reversible(step, [specs], jit_compile=self.jit_compile, changing=changing)

    def _optimizers(self) -> list[Any]:
        model = self.computation.model
        return [] if model is None else optimizers_of(model)

    def _all_known(self) -> list[Any]:
        of_optimizers = (variable for optimizer in self._optimizers() for variable in optimizer.variables)
        known = [*self.computation.trained(), *self.computation.may_move(), *of_optimizers]
        return [backing_variable(variable) for variable in distinct(known)]
