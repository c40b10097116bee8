"""A step that can be neither staged nor split, guarded whole: it runs as it is, with a way back."""

from __future__ import annotations

from typing import Any

from memfit.devices import is_oom
from memfit.runs.aligned import as_tensor
from memfit.runs.batches import Batch
from memfit.runs.computations import Computation
from memfit.runs.graphs import graph, written_variables
from memfit.runs.keras_internals import backing_variable, optimizers_of
from memfit.runs.stages import distinct
from memfit.runs.steps import flatten, pack, specs_of
from memfit.runs.waybacks import WayBack, free_bytes, interrupts_held_back


class RolledBackStep:
    """Runs the step itself on the whole batch; if it fails, every variable that it writes goes back."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.jit_compile = computation.jit_compile
        self._traces: dict[str, tuple[Any, WayBack]] = {}
        self._needed_bytes = 0

    def gather(self, batch: Batch, micro_batch_size: int) -> Any:
        """Run the step on all of the batch at once."""
        del micro_batch_size
        structure, leaves = flatten(batch.part(0, batch.size))
        leaves = [as_tensor(leaf) for leaf in leaves]
        run, way_back = self._traced(structure, leaves)
        free = free_bytes()
        on_host = free is not None and free <= max(self._needed_bytes, way_back.bytes)
        with interrupts_held_back():
            if on_host:
                way_back.hold_on_host()
            else:
                way_back.hold()
            try:
                return run(leaves)
            except BaseException as error:
                way_back.go_back()
                if is_oom(error) and free is not None:
                    self._needed_bytes = free + 1  # from now on without copies on the device
                raise
            finally:
                way_back.release()

    def commit(self) -> None:
        """Nothing is left to do."""

    def _traced(self, structure: Any, leaves: list[Any]) -> tuple[Any, WayBack]:
        key = str((structure, [leaf.shape for leaf in leaves]))
        if key not in self._traces:
            self._traces[key] = self._trace(structure, leaves)
        return self._traces[key]

    def _trace(self, structure: Any, leaves: list[Any]) -> tuple[Any, WayBack]:
        def step(tensors: list[Any]) -> Any:
            return self.computation.run_plain(pack(structure, tensors))

        if self.computation.eager:
            return step, WayBack(self._all_known())
        function = graph(
            step, input_signature=[specs_of(leaves, open_batch=False)], jit_compile=self.jit_compile
        )
        return function, WayBack(written_variables(function.get_concrete_function()))

    def _all_known(self) -> list[Any]:
        model = self.computation.model
        known = [
            *model.variables,
            *self.computation.may_move(),
            *(variable for optimizer in optimizers_of(model) for variable in optimizer.variables),
        ]
        return [backing_variable(variable) for variable in distinct(known)]

    def without_xla(self) -> bool:
        """Go on without XLA, which may abort the process on the next attempt; False if it was off."""
        if not self.jit_compile:
            return False
        self.jit_compile = False
        self._traces.clear()
        return True
