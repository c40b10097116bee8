"""The steps of a Keras model as functions to trace, without changing anything of the model.

Variables that the first step would create (of optimizer, metrics and losses) are created without memory, and
taken back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from memfit.core.errors import CannotEstimate
from memfit.core.records import Call, Probe, Program, VariableRole
from memfit.estimating.simulator.peaks import calibrate, unknown_kinds
from memfit.graph.kernel_probes import Prober
from memfit.graph.labels import Labels
from memfit.graph.phased_trace import PhasedTrace
from memfit.graph.trace import Trace
from memfit.guarding.loop import LoopStep
from memfit.guarding.step.batches import Structure
from memfit.guarding.step.computation import Computation, LossFunction, ModelStep
from memfit.guarding.step.staged_step import Computed, StagedStep
from memfit.model.snapshots import Snapshot, untouched
from memfit.model.training_data import (
    as_step_takes,
    batch_specs,
    filled,
    is_keras_own,
    leaves_of,
    prediction_specs,
    training_specs,
    why_batch_is_fixed,
)
from memfit.private.keras.layers import CalledLayers, called_layers
from memfit.private.keras.trainer import build_everything, optimizer_variables, optimizers_of, with_inner
from memfit.private.tensorflow.variables import backing_variable, variables_without_memory

_STEPS: dict[Call, str] = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


def step_of(model: Any, data: Any = None, *, call: Call = "fit") -> Trace:
    """The step that a call of Keras runs, on batches like `data`, or as the model and its loss say."""
    check_model(model)
    specs = prediction_specs(model, data) if call == "predict" else training_specs(model, data)
    jit_compile = bool(model.compiled and model.jit_compile)
    present = [*model.variables, *optimizer_variables(model)]

    @contextmanager
    def prepared() -> Iterator[Labels]:
        # XLA looks at variables as they are, so that they must have values there.
        with untouched(model), nullcontext() if jit_compile else variables_without_memory():
            compile_if_it_is_not(model)
            if call != "predict":
                _build(model, specs)
            with called_layers() as layers:
                yield labels_of(model, present, layers)

    def step(batch: Any) -> Any:
        return getattr(model, _STEPS[call])(as_step_takes(batch) if call == "fit" else batch)

    assumed = what_is_assumed(model) if call != "predict" else ()
    return Trace(step, specs, prepared=prepared, jit_compile=jit_compile, left_out=assumed)


def check_model(model: Any) -> None:
    """Raise unless it is a Keras model."""
    if not isinstance(model, keras.Model):
        raise CannotEstimate(
            f"expected a keras.Model, received {type(model).__name__}",
            suggestion="memfit.estimate(model, batch_size=32)",
        )


def compile_if_it_is_not(model: Any) -> None:
    """Take a model that is not compiled as one with Adam and the mean squared error."""
    if not model.compiled:
        model.compile("adam", "mse")


def what_is_assumed(model: Any) -> tuple[str, ...]:
    """The assumptions of an estimate about a model."""
    return () if model.compiled else ("the model is not compiled: taken as Adam and mean squared error",)


def labels_of(model: Any, present: list[Any], layers: CalledLayers) -> Labels:
    """The labels of the variables and operations of a built model."""
    return labels_for(layers, model.optimizer, model.variables, present)


def labels_for(layers: CalledLayers, optimizer: Any, weights: list[Any], present: list[Any]) -> Labels:
    """The labels with the roles of variables, and with the variables that are in memory anyway."""
    labels = Labels(layers=layers, update=getattr(optimizer, "name", None))
    slots = [] if optimizer is None else list(optimizer.variables)
    held: list[tuple[VariableRole, list[Any]]] = [("weight", weights), ("optimizer", slots)]
    for role, variables in held:
        for variable in variables:
            backing = backing_variable(variable)
            labels.paths[id(backing)] = variable.path
            labels.roles[id(backing)] = role
    labels.present.extend(map(backing_variable, present))
    return labels


_SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class StepProgram:
    """A step, traced once: what it does at any batch size, whole or in micro-batches of a size.

    The scratch of unknown kernels is measured once, on a few samples in another process: where it matters, or
    always or never.
    """

    whole: Trace
    parts: PhasedTrace | None = None
    micro_batch_size: int = 0
    probes: bool | None = None  # None: where it matters
    one_size: str | None = None  # why it runs on batches of one size, so that a few samples cannot be probed
    _probes: dict[bool, Probe] = field(default_factory=dict)  # of batches that are split, and of others
    _prober: Prober = field(default_factory=Prober)

    def with_onednn(self, onednn: bool) -> StepProgram:
        """The same trace of a step that is not split, read as if TensorFlow ran with oneDNN, or without."""
        whole = self.whole.with_kernels_of("oneDNN" if onednn else "TensorFlow")
        return replace(self, whole=whole, parts=None, micro_batch_size=0, _probes={}, _prober=Prober(onednn))

    def begin(self) -> None:
        """Trace the step; what takes a while and can be done by others is done meanwhile."""
        self.whole.begin()
        if self.probes is not False and self.one_size is None and self.whole.has_unknown_kernels:
            self._prober.begin()

    def at(self, batch_size: int) -> Program:
        """The Program of the step with a batch of this size."""
        return self.probed_at(batch_size)[0]

    def probed_at(self, batch_size: int) -> tuple[Program, bool]:
        """The same, and whether a probe has measured the scratch of its kernels."""
        self.begin()
        parts = self.parts if batch_size > self.micro_batch_size else None
        program = self.whole.at(batch_size) if parts is None else parts.at(batch_size, self.micro_batch_size)
        wanted = bool(unknown_kinds(program)) if self.probes is None else self.probes
        if not wanted:
            self._prober.end()
            return program, False
        why_not = "XLA itself has laid out the memory" if program.method == "xla" else self.one_size
        if why_not is not None:
            note = f"nothing was probed: {why_not}"
            return replace(program, left_out=(*program.left_out, note)), False
        is_split = parts is not None
        if is_split not in self._probes:
            self._probes[is_split] = self._prober.probe((parts or self.whole).candidates)
        return calibrate(program, self._probes[is_split]), True


def step_program(
    target: Any,
    data: Any = None,
    *,
    call: Call = "fit",
    micro_batch_size: int | None = None,
    probes: bool | None = None,
) -> StepProgram:
    """The Program of a step at any batch size, of a model or of `memfit.step`.

    Without a micro-batch size, batches are not split. `probes` says whether unknown kernels are measured.
    """
    loop = target.computation if isinstance(target, LoopStep) else None
    if micro_batch_size is not None and call != "fit":
        raise CannotEstimate(
            f"micro-batches are for training, not for {call}", suggestion="leave micro_batch_size out"
        )
    whole = step_of(target, data, call=call) if loop is None else _loop(loop, data)
    one_size = None if loop is not None else why_batch_is_fixed(target)
    if micro_batch_size is None:
        return StepProgram(whole, probes=probes, one_size=one_size)
    parts = _model_in_parts(target, data) if loop is None else _loop_in_parts(loop, data)
    return StepProgram(whole, parts, micro_batch_size, probes, one_size)


def _model_in_parts(model: Any, data: Any) -> PhasedTrace:
    check_model(model)
    specs = training_specs(model, data)
    present = [*model.variables, *optimizer_variables(model)]

    @contextmanager
    def prepared() -> Iterator[tuple[Labels, StepGraphs]]:
        with untouched(model):
            compile_if_it_is_not(model)
            # What is staged is copied, so that it must have values: metrics, seeds and statistics are small.
            with variables_without_memory(from_bytes=_SMALL_BYTES):
                _build(model, specs)
            with called_layers() as layers:
                yield (
                    labels_of(model, present, layers),
                    _phases(ModelStep(model, "train_step"), as_step_takes(specs)),
                )

    left_out = what_is_assumed(model)
    if model.compiled and model.jit_compile:
        left_out += ("that XLA compiles the micro-batches; estimated as graphs that it does not",)
    return PhasedTrace(prepared, left_out=left_out)


def _build(model: Any, specs: Any) -> None:
    """Create all variables; a model that its step does not call, as a GAN, has them from its first trace."""
    try:
        build_everything(model, specs)
    except Exception:
        if is_keras_own(model, "train_step") or not any(one.built for one in optimizers_of(model)):
            raise


def _loop(loop: LossFunction, data: Any) -> Trace:
    @contextmanager
    def prepared() -> Iterator[Labels]:
        with _built_loop(loop) as labels:
            yield labels

    return Trace(loop.run_plain, _loop_specs(data), prepared=prepared)


def _loop_in_parts(loop: LossFunction, data: Any) -> PhasedTrace:
    specs = _loop_specs(data)

    @contextmanager
    def prepared() -> Iterator[tuple[Labels, StepGraphs]]:
        with _built_loop(loop) as labels:
            yield labels, _phases(loop, specs)

    return PhasedTrace(prepared)


@contextmanager
def _built_loop(loop: LossFunction) -> Iterator[Labels]:
    """A loop's optimizer with all its variables, for a while."""
    weights, present = loop.trained(), [*loop.trained(), *loop.optimizer.variables]
    snapshot = Snapshot(with_inner(loop.optimizer))
    try:
        _build_without_memory(loop.optimizer, weights)
        with called_layers() as layers:
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


def _phases(computation: Any, specs: Any) -> StepGraphs:
    structure = filled(specs, [spec.dtype.name for spec in leaves_of(specs)])
    return step_graphs(computation, structure, leaves_of(specs))


@dataclass(frozen=True)
class StepGraphs:
    """The graphs of a step in micro-batches: the first one, every other one, and what commits them."""

    first: Any
    other: Any
    commits: list[Any]
    slices: list[Any]  # outputs of the first two that are kept until the commit, in the order it takes them
    step: StagedStep  # which holds the variables


def step_graphs(computation: Computation, structure: Structure, specs: list[Any]) -> StepGraphs:
    """Trace a step on micro-batches with these specs, their batch dimension open."""
    reason = computation.why_not_split()
    step = StagedStep(computation)
    traced = None if reason else step.traced(structure, specs)
    reasons = [reason] if reason else [*step.unstaged, *step.hindrances]
    if traced is None or reasons:
        raise CannotEstimate(
            f"its batches cannot be split: {reasons[0]}", suggestion="leave micro_batch_size out"
        )
    first, other = traced.graphs()
    slices = Computed(*first.graph.structured_outputs).slices
    step.accumulators.keep(traced.reached, slices)
    step.stage.written.update(traced.written)
    return StepGraphs(first, other, step.commit_graphs(slices), keras.tree.flatten(slices), step)
