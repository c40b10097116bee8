"""Model or loop -> Program: the step that will really run, traced and not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from memfit.errors import CannotEstimate
from memfit.models import internals as models
from memfit.models.snapshots import Snapshot, untouched
from memfit.models.specs import batch_specs, training_specs
from memfit.programs.internals import variables_without_memory
from memfit.programs.labels import Labels
from memfit.programs.phases import PhasedTrace
from memfit.programs.probes import probe
from memfit.programs.traces import Trace
from memfit.programs.training import (
    check_model,
    compile_if_it_is_not,
    labels_for,
    labels_of,
    step_of,
    what_is_assumed,
)
from memfit.records import Call, Probe, Program
from memfit.runs.computations import LossFunction, ModelStep
from memfit.runs.loops import LoopStep
from memfit.runs.phases import Phases, phases_of

_SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class Foresight:
    """A step, traced once: what it does at any batch size, whole or in micro-batches of a size."""

    whole: Trace
    parts: PhasedTrace | None = None
    micro_batch_size: int = 0

    def at(self, batch_size: int) -> Program:
        """What it does with a batch of this size."""
        if self.parts is not None and self.splits(batch_size):
            return self.parts.at(batch_size, self.micro_batch_size)
        return self.whole.at(batch_size)

    def splits(self, batch_size: int) -> bool:
        """Whether it is run in micro-batches."""
        return self.parts is not None and batch_size > self.micro_batch_size

    def probe(self, batch_size: int) -> Probe:
        """What the kernels that run on such a batch need, measured on a few samples in another process."""
        step = self.parts if self.parts is not None and self.splits(batch_size) else self.whole
        return probe(step.candidates)


def foresee(
    target: Any, data: Any = None, *, call: Call = "fit", micro_batch_size: int | None = None
) -> Foresight:
    """What a step does at any batch size, of a model or of `memfit.step`.

    Without a micro-batch size, batches are not split.
    """
    loop = target.computation if isinstance(target, LoopStep) else None
    if micro_batch_size is not None and call != "fit":
        raise CannotEstimate(
            f"micro-batches are for training, not for {call}", suggestion="leave micro_batch_size out"
        )
    whole = step_of(target, data, call=call) if loop is None else _loop(loop, data)
    if micro_batch_size is None:
        return Foresight(whole)
    parts = _model_in_parts(target, data) if loop is None else _loop_in_parts(loop, data)
    return Foresight(whole, parts, micro_batch_size)


def _model_in_parts(model: Any, data: Any) -> PhasedTrace:
    check_model(model)
    specs = training_specs(model, data)
    present = [*model.variables, *models.optimizer_variables(model)]

    @contextmanager
    def prepared() -> Iterator[tuple[Labels, Phases]]:
        with untouched(model):
            compile_if_it_is_not(model)
            # What is staged is copied, so that it must have values: metrics, seeds and statistics are small.
            with variables_without_memory(from_bytes=_SMALL_BYTES):
                models.build_everything(model, specs)
            with models.called_layers() as layers:
                yield labels_of(model, present, layers), _phases(ModelStep(model, "train_step"), specs)

    left_out = what_is_assumed(model)
    if model.compiled and model.jit_compile:
        left_out += ("that XLA compiles the micro-batches; estimated as graphs that it does not",)
    return PhasedTrace(prepared, left_out=left_out)


def _loop(loop: LossFunction, data: Any) -> Trace:
    @contextmanager
    def prepared() -> Iterator[Labels]:
        with _built_loop(loop) as labels:
            yield labels

    return Trace(loop.run_plain, _loop_specs(data), prepared=prepared)


def _loop_in_parts(loop: LossFunction, data: Any) -> PhasedTrace:
    specs = _loop_specs(data)

    @contextmanager
    def prepared() -> Iterator[tuple[Labels, Phases]]:
        with _built_loop(loop) as labels:
            yield labels, _phases(loop, specs)

    return PhasedTrace(prepared)


@contextmanager
def _built_loop(loop: LossFunction) -> Iterator[Labels]:
    """A loop's optimizer with all its variables, for a while."""
    weights, present = loop.trained(), [*loop.trained(), *loop.optimizer.variables]
    snapshot = Snapshot(models.with_inner(loop.optimizer))
    try:
        _build_without_memory(loop.optimizer, weights)
        with models.called_layers() as layers:
            yield labels_for(layers, loop.optimizer, weights, present)
    finally:
        snapshot.restore()


def _loop_specs(data: Any) -> Any:
    if data is None:
        raise CannotEstimate(
            "nothing says the shapes of a loop's batches",
            suggestion="memfit.estimate(step, batch_size=32, data=(x[:1], y[:1]))",
        )
    return batch_specs(data)


def _build_without_memory(optimizer: Any, variables: list[Any]) -> None:
    if not optimizer.built:
        with variables_without_memory():
            optimizer.build(variables)


def _phases(computation: Any, specs: Any) -> Phases:
    structure = keras.tree.map_structure(lambda spec: spec.dtype.name, specs)
    return phases_of(computation, structure, keras.tree.flatten(specs))
