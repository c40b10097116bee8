"""The staged step: an out-of-memory error before the commit has changed nothing.

Phase one runs a computation micro-batch by micro-batch. Its gradients go into private accumulators, and
everything else that it would move (BatchNorm statistics, seeds, metrics) moves on a stage. Phase two
commits all of it, with a way back. Evaluation and prediction are the same without gradients.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from memfit.guarding.step.accumulators import Accumulators, Gradients, Moved, ShadowState, Slices, distinct
from memfit.guarding.step.batches import Batch, Structure, as_tensor, join_outputs, on_host, parts, sizes
from memfit.guarding.step.commit import Commit
from memfit.guarding.step.computation import Captured, Computation
from memfit.guarding.step.loss_weights import (
    LossWeights,
    Measure,
    Vector,
    Weighing,
    known_denominators,
    share_vectors,
)
from memfit.guarding.step.rollback import size_of
from memfit.guarding.step.room import need_of, room_checked
from memfit.machine.limits import free_bytes
from memfit.model.traced_functions import Graph, depends_on, foreign_state
from memfit.private.keras.losses_and_metrics import quiet
from memfit.private.tensorflow.variables import backing_variable


class Computed(NamedTuple):
    """The results of one micro-batch, eager or traced."""

    outputs: Any
    moved: Moved
    gradients: Gradients
    slices: Slices
    denominators: Any
    observed: list[Any]


class TracedStep:
    """A computation traced for one structure of data: for all batch sizes, or for one."""

    def __init__(self, step: StagedStep, structure: Structure, specs: list[Any]) -> None:
        self._step = step
        self._structure = structure
        self.specs = specs
        vector = tf.TensorSpec((1 + step.computation.output_count,), tf.float64)
        staged = [tf.TensorSpec(v.shape, v.dtype) for v in step.stage.variables]
        self._compute = Graph(
            lambda leaves, vector, values: step.compute(structure, leaves, vector, values),
            [specs, vector, staged],
            jit_compile=step.jit_compile,
        )
        with nullcontext() if step.jit_compile else room_checked():
            self.concrete = self._compute.concrete
        self.need = need_of(self.concrete, jit_compile=step.jit_compile)
        self.written = {int(place) for place in self.concrete.structured_outputs.moved}
        if not self.knows_size:  # else what follows from the number of samples looks the same
            step.once |= self._moved_once(len(staged))
        self.reached = list(self.concrete.structured_outputs.gradients)
        signature = [specs, vector]
        self._first = Graph(lambda *inputs: self._take(*inputs, first=True), signature)
        self._next = Graph(lambda *inputs: self._take(*inputs, first=False), signature)
        self._measure = Graph(self._denominators, signature)

    @property
    def knows_size(self) -> bool:
        """Whether it is for one batch size alone."""
        return _static_rows(self.specs) is not None

    def takes(self, leaves: list[Any]) -> bool:
        """Whether these tensors have shapes that it was traced for."""
        return all(spec.is_compatible_with(leaf) for spec, leaf in zip(self.specs, leaves, strict=True))

    def graphs(self) -> tuple[Any, Any]:
        """The graphs that run on a first micro-batch, and on every other."""
        return self._first.concrete, self._next.concrete

    def compute(self, leaves: list[Any], vector: Any, values: list[Any]) -> Computed:
        """Run it and take nothing; eagerly or while tracing."""
        return Computed(*self._compute(leaves, vector, values))

    def run(self, leaves: list[Any], vector: Any, *, first: bool) -> Computed:
        """Run it on a micro-batch; gradients and stage are taken inside."""
        return Computed(*(self._first if first else self._next)(leaves, vector))

    def _take(self, leaves: list[Any], vector: Any, *, first: bool) -> Computed:
        stage = self._step.stage
        values = stage.real_values() if first else stage.staged_values(self.written - self._step.once)
        computed = self.compute(leaves, vector, values)
        self._step.take(computed, first=first)
        return computed._replace(moved={}, gradients={})

    def _moved_once(self, count: int) -> set[int]:
        """The places of the state that moves alike whatever the samples are, as counters of steps do."""
        moved = {int(place): value for place, value in self.concrete.structured_outputs.moved.items()}
        arguments = self.concrete.inputs[: len(self.concrete.inputs) - len(self.concrete.captured_inputs)]
        data, values = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
        own = self._step.own_state()
        once = {place for place in moved if id(self._step.stage.variables[place]) in own}
        while True:
            others = [values[place] for place in moved if place not in once]
            kept = {place for place in once if not depends_on(moved[place], [*data, *others])}
            if kept == once:
                return once
            once = kept

    def measure(self, leaves: list[Any], vector: Any) -> Any:
        """Only what shares are measured by; TensorFlow leaves out what that does not need."""
        return self._measure(leaves, vector)

    def _denominators(self, leaves: list[Any], vector: Any) -> Any:
        step = self._step
        return step.compute(self._structure, leaves, vector, step.stage.real_values()).denominators


class MayUseXLA:
    """A holder of traces that XLA may have compiled."""

    jit_compile: bool
    _traces: dict[str, Any]

    def without_xla(self) -> bool:
        """Go on without XLA, which may abort the process on the next attempt; False if it was off."""
        if not self.jit_compile:
            return False
        self.jit_compile = False
        self._traces.clear()
        return True


class StagedStep(MayUseXLA):
    """One step of a computation, run on a stage: nothing of the user's is written before the commit.

    One trace serves all sizes of micro-batches. A size that is settled beforehand has one of its own, where
    TensorFlow fuses more operations, since none asks for shapes.

    >>> step = StagedStep(ModelStep(model, "train_step"))
    >>> outputs = step.gather(batch, micro_batch_size=16)
    >>> step.commit()
    """

    def __init__(
        self, computation: Computation, weighing: Weighing | None = None, *, settled_size: int | None = None
    ) -> None:
        self.computation = computation
        self.weighing = weighing or Weighing()
        self.settled_size = settled_size
        self.jit_compile = computation.jit_compile
        self.quiet = False
        self.accumulators = Accumulators()
        self.hindrances: list[str] = []  # against splitting
        self.unstaged: list[str] = []  # against running it on a stage at all
        self.stage = ShadowState(distinct(computation.may_move()))
        self.once: set[int] = set()  # places on the stage that move once for a batch, however it is split
        self.optimizer: Any = None
        self._commit: Commit | None = None
        self._traces: dict[str, list[TracedStep]] = {}
        self._open_batch = True
        self.observed_names: list[str | None] = []
        self._measures: dict[int, Measure] = {}

    # Phase one.

    def gather(self, batch: Batch, micro_batch_size: int) -> Any:
        """Run all of a batch in micro-batches; what the step returns, as for the whole batch."""
        self.accumulators.begin()
        self.stage.written.clear()
        shares = self._shares_of(batch, micro_batch_size)
        gathered: list[Any] = []
        try:
            for number, (part, vector) in enumerate(zip(parts(batch, micro_batch_size), shares, strict=True)):
                outputs = self._run_part(part, vector, first=number == 0, is_all=len(shares) == 1).outputs
                gathered.append(on_host(outputs) if self.computation.outputs_are == "rows" else outputs)
        except BaseException:
            self.accumulators.begin()
            self.accumulators.release()
            raise
        if len(gathered) == 1:
            return gathered[0]
        count = len(keras.tree.flatten(gathered[0]))
        kinds = self.weighing.outputs or [self.computation.outputs_are] * count
        return join_outputs(gathered, [float(vector[0]) for vector in shares], kinds)

    def _shares_of(self, batch: Batch, micro_batch_size: int) -> list[Vector]:
        """The share of each micro-batch in the batch, by samples and for each output."""
        count = 1 + self.computation.output_count
        if micro_batch_size >= batch.size:
            return [np.ones(count)]
        if not self._traces:
            self.traced(*flatten(batch.part(0, micro_batch_size)))  # which says what losses are measured by
        measures = [self._measures.get(place, "nothing") for place in range(count - 1)]
        if "data" in measures:
            return share_vectors([self._measure(part) for part in parts(batch, micro_batch_size)])
        return share_vectors([known_denominators(size, measures) for size in sizes(batch, micro_batch_size)])

    def _measure(self, part: Structure) -> Vector:
        structure, leaves = flatten(part)
        neutral = np.ones(1 + self.computation.output_count)
        if self.computation.eager:
            computed = self.compute(structure, leaves, as_tensor(neutral), self.stage.real_values())
            return np.asarray(computed.denominators)
        return np.asarray(self.traced(structure, leaves).measure(leaves, as_tensor(neutral)))

    def _run_part(self, part: Structure, vector: Vector, *, first: bool, is_all: bool) -> Computed:
        structure, leaves = flatten(part)
        if self.computation.eager:
            values = self.stage.staged_values(self.stage.written - self.once)
            computed = self.compute(structure, leaves, as_tensor(vector), values)
            self.take(computed, first=first)
            reached, written = list(computed.gradients), set(map(int, computed.moved))
        else:
            traced = self.traced(structure, leaves)
            traced.need.check(leaves[0].shape[0] or 0, free_bytes())
            computed = traced.run(leaves, as_tensor(vector), first=first)
            reached, written = traced.reached, traced.written
        self.stage.written.update(written)
        self.accumulators.keep(reached, computed.slices, are_all=is_all)
        return computed._replace(slices={})

    def take(self, computed: Computed, *, first: bool) -> None:
        """Keep what a micro-batch gave; eagerly or while tracing."""
        self.accumulators.take(computed.gradients, first=first)
        self.stage.keep(computed.moved)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of all that is trained, as far as it has been traced."""
        return sum(size_of(backing_variable(variable)) for variable in self.accumulators.variables)

    def own_state(self) -> set[int]:
        """The identities of what the model keeps besides trained weights, metrics and seeds."""
        model = self.computation.model
        return set() if model is None else set(map(id, model.non_trainable_weights))

    # Phase two.

    def commit(self) -> Exception | None:
        """Change the model by what was gathered; on any failure change nothing.

        Returns the out-of-memory error that the commit survived, if there was one.
        """
        return self._ready_commit().run()

    def commit_graphs(self, slices: Slices) -> list[Any]:
        """The graphs of a commit, one after the other, once micro-batches have been traced and kept."""
        return self._ready_commit().graphs(slices)

    def _ready_commit(self) -> Commit:
        if self._commit is None:
            self._commit = Commit(self.optimizer, self.accumulators, self.stage, eager=self.computation.eager)
        return self._commit

    # Tracing.

    def traced(self, structure: Structure, leaves: list[Any]) -> TracedStep:
        """One trace for all sizes but the settled one; a new one only when another dimension changes."""
        traces = self._traces.setdefault(str(structure), [])
        knows_size = self._wants_size(leaves)
        for traced in traces:
            if traced.knows_size == knows_size and traced.takes(leaves):
                return traced
        found = self.computation.draws.as_in_keras(lambda: self._trace(structure, leaves, traces))
        traces[:] = [*(traced for traced in traces if traced.knows_size), found]
        return found

    def _wants_size(self, leaves: list[Any]) -> bool:
        rows = _static_rows(leaves)
        return not self._open_batch or (rows is not None and rows == self.settled_size)

    def _trace(self, structure: Structure, leaves: list[Any], before: list[TracedStep]) -> TracedStep:
        if self._wants_size(leaves):
            return self._trace_all_that_moves(structure, specs_of(leaves, open_batch=False))
        known = next((traced.specs for traced in before if not traced.knows_size), None)
        try:
            return self._trace_all_that_moves(structure, specs_of(leaves, open_batch=True, before=known))
        except Exception:  # noqa: BLE001 - some models want to know the size of the batch: a trace for each
            traced = self._trace_all_that_moves(structure, specs_of(leaves, open_batch=False))
            self._open_batch = False
            return traced

    def _trace_all_that_moves(self, structure: Structure, specs: list[Any]) -> TracedStep:
        """Trace again as long as the step assigns to variables that are not on the stage yet."""
        while True:
            known = len(self.stage.variables)
            traced = TracedStep(self, structure, specs)
            if len(self.stage.variables) == known:
                return traced

    def prepare(self, part: Structure) -> list[str]:
        """Trace the step on data like this; returns what it does besides computing."""
        structure, leaves = flatten(part)
        return foreign_state(self.traced(structure, leaves).concrete)

    def start_values(self, part: Structure) -> list[Any]:
        """The values that a first part begins with, once all that moves is known."""
        self.traced(*flatten(part))
        return self.stage.real_values()

    def run_alone(self, structure: Structure, leaves: list[Any], vector: Any, values: list[Any]) -> Computed:
        """Run the computation on these values and keep nothing."""
        return self.traced(structure, leaves).compute(leaves, vector, values)

    def compute(self, structure: Structure, leaves: list[Any], vector: Any, values: list[Any]) -> Computed:
        """The computation on one micro-batch, eagerly or while tracing."""
        data = pack(structure, leaves)
        shares = LossWeights(vector, _rows(leaves[0]), self.weighing)
        with ExitStack() as scopes:
            if self.quiet:
                scopes.enter_context(quiet(self.computation.model))
            scope = scopes.enter_context(self.stage.scope(values))
            scopes.callback(lambda: _add_new(self.unstaged, scope.hindrances))
            outputs, captured = self.computation.run(data, shares)
        self._note(captured)
        self._measures.update(shares.measures)
        self.observed_names = shares.observed_names
        self.stage.extend(scope.strangers)
        update = captured.updates[-1] if captured.updates else None
        dense, slices = (
            ({}, {})
            if update is None or self.unstaged
            else self.accumulators.separate(
                update.gradients, update.variables, shares=shares, kind=self.weighing.gradients
            )
        )
        return Computed(
            outputs,
            self.stage.moved(scope),
            dense,
            slices,
            shares.denominator_vector(self.computation.output_count),
            shares.observed,
        )

    def _note(self, captured: Captured) -> None:
        _add_new(self.hindrances, captured.hindrances)
        _add_new(self.unstaged, captured.unstaged)
        if captured.updates:
            self.optimizer = captured.updates[-1].optimizer


def _add_new(known: list[str], found: list[str]) -> None:
    known.extend(reason for reason in dict.fromkeys(found) if reason not in known)


def flatten(part: Structure) -> tuple[Structure, list[Any]]:
    """The structure of a micro-batch without its data, which a traced function would keep; its tensors."""
    structure = keras.tree.map_structure(lambda leaf: None if leaf is None else str(leaf.dtype), part)
    return structure, [as_tensor(leaf) for leaf in keras.tree.flatten(part) if leaf is not None]


def pack(structure: Structure, leaves: list[Any]) -> Structure:
    """A micro-batch from its structure and its tensors."""
    remaining = iter(leaves)
    return keras.tree.map_structure(lambda leaf: None if leaf is None else next(remaining), structure)


def _rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    return leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]


def _static_rows(leaves: list[Any]) -> int | None:
    """The number of rows of tensors or specs, if it is known."""
    rows: int | None = leaves[0].shape[0]
    return rows


def specs_of(leaves: list[Any], *, open_batch: bool, before: list[Any] | None = None) -> list[Any]:
    """Specs that take these leaves and all that came before; other dimensions open where they differ."""
    shapes = [[None if open_batch else leaf.shape[0], *leaf.shape[1:]] for leaf in leaves]
    if before and all(len(spec.shape) == len(shape) for spec, shape in zip(before, shapes, strict=True)):
        shapes = [
            [old if old == new else None for old, new in zip(spec.shape, shape, strict=True)]
            for spec, shape in zip(before, shapes, strict=True)
        ]
    return [_spec_of(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]


def _spec_of(leaf: Any, shape: list[int | None]) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, leaf.dtype)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
    return tf.TensorSpec(shape, leaf.dtype)
