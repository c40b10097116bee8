"""The two-phase step: an out-of-memory error before the commit has changed nothing.

Phase one runs the model's own `train_step` micro-batch by micro-batch. Its gradients go into private
accumulators, and everything else that it would move (BatchNorm statistics, seeds, metrics) moves on a
stage: private copies. Phase two commits all of it at once, with a way back.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from memfit.devices import is_oom
from memfit.errors import CannotGuard
from memfit.runs import keras_internals
from memfit.runs.batches import Structure
from memfit.runs.keras_internals import StagedScope, backing_variable, overridden
from memfit.runs.shares import share_kind, why_not_split

Logs = dict[str, Any]


class TwoPhaseStep:
    """One training step of a compiled and built model, in two phases.

    >>> step = TwoPhaseStep(model)
    >>> step.reset(batch_size=64)
    >>> for part in parts(batch, 16):
    ...     logs = step.add_gradients(part)
    >>> step.commit()
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimizer = model.optimizer
        self.why_not_split = why_not_split(model)
        self._share_kind = share_kind(model)
        self._jit_compile = bool(model.jit_compile)
        self._trainable = list(model.trainable_variables)
        self._others = _distinct(
            [*model.non_trainable_variables, *model.metrics_variables], but=self._trainable
        )
        self._accumulators = [_private_copy(variable) for variable in self._trainable]
        self._stage = [_private_copy(variable) for variable in self._others]
        self._batch_size = tf.Variable(0, dtype=tf.int32, trainable=False)
        self._reached: set[int] = set()
        self._phase_one: dict[Any, tuple[list[Any], Any]] = {}
        self._clear = tf.function(self._clear_stage)
        self._apply = tf.function(self._apply_stage)
        self._refer = tf.function(lambda: [variable.read_value() for variable in self._changing])
        self._snapshot_on_host = False

    @property
    def _changing(self) -> list[Any]:
        """Every tf.Variable that a commit may change."""
        variables = _distinct([*self._trainable, *self.optimizer.variables, *self._others], but=[])
        return [backing_variable(variable) for variable in variables]

    # Phase one: nothing of the user's is written.

    def reset(self, batch_size: int) -> None:
        """Begin a step: empty accumulators, a stage that holds what the model holds."""
        self._batch_size.assign(batch_size)
        self._clear()

    def _clear_stage(self) -> None:
        for accumulator in self._accumulators:
            accumulator.assign(tf.zeros_like(accumulator))
        for variable, staged in zip(self._others, self._stage, strict=True):
            staged.assign(backing_variable(variable).read_value())

    def add_gradients(self, data: Structure) -> Logs:
        """Run the model's train step on one micro-batch; returns the logs as of this micro-batch."""
        leaves = [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(data) if leaf is not None]
        logs: Logs = self._function_for(data, leaves)(leaves)
        return logs

    def without_xla(self) -> bool:
        """Go on without XLA, which may abort the process on the next attempt; False if it was off."""
        if not self._jit_compile:
            return False
        self._jit_compile = False
        self._phase_one.clear()
        return True

    def _function_for(self, data: Structure, leaves: list[Any]) -> Any:
        """One trace for all batch sizes; a new one only when another dimension changes."""
        key = str(keras.tree.map_structure(lambda leaf: None if leaf is None else leaf.dtype, data))
        specs, function = self._phase_one.get(key, ([], None))
        if function is not None and all(
            spec.shape.is_compatible_with(leaf.shape) for spec, leaf in zip(specs, leaves, strict=True)
        ):
            return function
        if self.model.run_eagerly:
            return lambda tensors: self._run_train_step(data, tensors)
        specs = self._widen(specs, leaves)
        function = tf.function(
            lambda tensors: self._run_train_step(data, tensors),
            input_signature=[specs],
            jit_compile=self._jit_compile,
            autograph=False,
        )
        self._phase_one[key] = (specs, function)
        return function

    def _widen(self, specs: list[Any], leaves: list[Any]) -> list[Any]:
        """Specs that take these leaves and all that came before; the batch dimension is open."""
        keep_batch = self.why_not_split is not None
        shapes = [leaf.shape if keep_batch else [None, *leaf.shape[1:]] for leaf in leaves]
        if specs:
            shapes = [
                [old if old == new else None for old, new in zip(spec.shape, shape, strict=True)]
                for spec, shape in zip(specs, shapes, strict=True)
            ]
        return [tf.TensorSpec(shape, leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]

    def _run_train_step(self, structure: Structure, tensors: list[Any]) -> Logs:
        remaining = iter(tensors)
        data = keras.tree.map_structure(lambda leaf: None if leaf is None else next(remaining), structure)
        staged = [
            (variable, stage.read_value()) for variable, stage in zip(self._others, self._stage, strict=True)
        ]
        captured: list[tuple[Any, Any]] = []
        with StagedScope(staged) as scope, ExitStack() as overrides:
            for override in self._overrides(data, captured):
                overrides.enter_context(override)
            logs: Logs = self.model.train_step(data)
        self._accumulate(captured)
        self._write_stage(scope)
        return logs

    def _overrides(self, data: Structure, captured: list[tuple[Any, Any]]) -> list[Any]:
        """What is different while the train step runs: the update is captured, losses count by share."""
        parts = _Parts(self._share_kind, data, self._batch_size.read_value())

        def capture(gradients: Any, variables: Any = None) -> None:
            captured.extend(zip(gradients, variables, strict=True))

        def compute_loss(x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True) -> Any:
            del x, training
            self._look_for_obstacles(y_pred)
            losses = []
            if (compiled := keras_internals.compiled_loss(self.model)) is not None:
                losses.append(parts.of_data(compiled(y, y_pred, sample_weight)))
            added = [keras_internals.aggregate_added_loss(self.model, loss) for loss in self.model.losses]
            losses.extend(parts.of_batch(loss) for loss in added)
            return losses[0] if len(losses) == 1 else keras.ops.sum(losses)

        tracker = keras_internals.loss_tracker(self.model)
        update_tracker = tracker.update_state

        def track(value: Any, sample_weight: Any = None) -> Any:
            return update_tracker(parts.whole(value), sample_weight=sample_weight)

        return [
            overridden(self.optimizer, "apply", capture),
            overridden(self.model, "compute_loss", compute_loss),
            overridden(tracker, "update_state", track),
            *(self._track_output(metric, parts) for metric in _output_trackers(self.model)),
        ]

    def _track_output(self, metric: Any, parts: _Parts) -> Any:
        update = metric.update_state

        def track(value: Any, sample_weight: Any = None) -> Any:
            del sample_weight  # Keras passes the static batch size, which is open here
            return update(parts.whole(parts.of_data(value)), sample_weight=parts.samples)

        return overridden(metric, "update_state", track)

    def _look_for_obstacles(self, y_pred: Any) -> None:
        """While tracing: what only the running model shows against splitting."""
        regularised = sum(variable.regularizer is not None for variable in self._trainable)
        if any(keras_internals.mask_of(tensor) is not None for tensor in keras.tree.flatten(y_pred)):
            self.why_not_split = self.why_not_split or "an output carries a mask"
        elif len(self.model.losses) > regularised:
            self.why_not_split = self.why_not_split or "a layer adds a loss of its own"

    def _accumulate(self, captured: list[tuple[Any, Any]]) -> None:
        places = {id(variable): place for place, variable in enumerate(self._trainable)}
        for gradient, variable in captured:
            if gradient is None:
                continue
            place = places[id(variable)]
            self._reached.add(place)
            if isinstance(gradient, tf.IndexedSlices):
                self._accumulators[place].scatter_add(gradient)
            else:
                self._accumulators[place].assign_add(gradient)

    def _write_stage(self, scope: StagedScope) -> None:
        stages = {id(variable): stage for variable, stage in zip(self._others, self._stage, strict=True)}
        for variable in scope.written.values():
            if id(variable) not in stages:
                raise CannotGuard(
                    f"its train step writes the variable {variable.path}, which the model does not track",
                    suggestion="create the variable with self.add_weight(..., trainable=False)",
                )
            stages[id(variable)].assign(scope.get_current_value(variable))

    # Phase two: everything at once, with a way back.

    def commit(self) -> None:
        """Apply the gathered gradients and the stage to the model; on any failure change nothing.

        The way back is a reference to every old value, which costs memory only while the commit writes.
        Where that memory is not there, the old values are copied to the host instead.
        """
        try:
            self._commit_or_go_back()
        except Exception as error:
            if self._snapshot_on_host or not is_oom(error):
                raise
            self._snapshot_on_host = True
            self._commit_or_go_back()

    def _commit_or_go_back(self) -> None:
        before = self._refer()
        if self._snapshot_on_host:
            before = [value.numpy().copy() for value in before]
        try:
            self._apply()
        except BaseException:
            for variable, value in zip(self._changing, before, strict=True):
                variable.assign(value)
            raise

    def _apply_stage(self) -> None:
        gradients = [
            accumulator.read_value() if place in self._reached else None
            for place, accumulator in enumerate(self._accumulators)
        ]
        self.optimizer.apply(gradients, self._trainable)
        for variable, stage in zip(self._others, self._stage, strict=True):
            backing_variable(variable).assign(stage.read_value())


class _Parts:
    """How much of the whole batch one micro-batch is; all of it scalars in the graph."""

    def __init__(self, kind: str | None, data: Structure, batch_size: Any) -> None:
        first = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)
        self.samples = tf.shape(first)[0]
        self._kind = kind
        self._batch_size = batch_size

    def of_data(self, loss: Any) -> Any:
        """A data loss as its part of the batch's."""
        return loss if self._kind == "sum" else self.of_batch(loss)

    def of_batch(self, loss: Any) -> Any:
        """A loss of the batch as a whole, spread by samples."""
        return loss * (tf.cast(self.samples, loss.dtype) / tf.cast(self._batch_size, loss.dtype))

    def whole(self, part: Any) -> Any:
        """The value whose mean, weighted by samples, makes the batch's loss again."""
        return part * (tf.cast(self._batch_size, part.dtype) / tf.cast(self.samples, part.dtype))


def _output_trackers(model: Any) -> list[Any]:
    compiled = keras_internals.compiled_loss(model)
    return [] if compiled is None else list(compiled.metrics)


def _private_copy(variable: Any) -> Any:
    return tf.Variable(tf.zeros(variable.shape, backing_variable(variable).dtype), trainable=False)


def _distinct(variables: list[Any], *, but: list[Any]) -> list[Any]:
    seen = {id(variable) for variable in but}
    return [variable for variable in variables if not (id(variable) in seen or seen.add(id(variable)))]  # type: ignore[func-returns-value]
