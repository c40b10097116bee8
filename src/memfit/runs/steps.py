"""The two-phase step: an out-of-memory error before the commit has changed nothing.

Phase one runs the model's own `train_step` micro-batch by micro-batch. Its gradients go into private
accumulators, and everything else that it would move (BatchNorm statistics, seeds, metrics) moves on a
stage. Phase two commits all of it at once, with a way back. Evaluation is the same without gradients.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.runs import keras_internals
from memfit.runs.accumulators import Accumulators, Slices
from memfit.runs.aligned import as_tensor
from memfit.runs.batches import Structure
from memfit.runs.commits import Commit
from memfit.runs.graphs import graph
from memfit.runs.keras_internals import overridden
from memfit.runs.shares import Part, share_kind, why_not_split
from memfit.runs.stages import Stage, distinct

Logs = dict[str, Any]


class StagedStep:
    """One step of a compiled and built model, run on a stage: nothing of the user's is written.

    What is common to training and evaluation. `step_name` is the model's own method that is run.
    """

    step_name: str

    def __init__(self, model: Any, *, weigh_outputs_by_samples: bool = True) -> None:
        self.model = model
        self.why_not_split = why_not_split(model)
        self._trainable = list(model.trainable_variables)
        self._share_kind = share_kind(model)
        self._weigh_outputs_by_samples = weigh_outputs_by_samples
        self._jit_compile = bool(model.jit_compile)
        self._batch_size = tf.Variable(0, dtype=tf.int32, trainable=False)
        others = [
            *model.non_trainable_variables,
            *model.metrics_variables,
            *keras_internals.global_seed_states(),
        ]
        self._stage = Stage(distinct(others, but=self._trainable))
        self._begin: Any = None
        self._functions: dict[str, tuple[list[Any], Any]] = {}

    def begin(self, batch_size: int) -> None:
        """Begin a step: a stage that holds what the model holds."""
        self._begin = self._begin or self._begin_graph()
        self._begin(as_tensor(np.array(batch_size, np.int32)))

    def _begin_graph(self) -> Any:
        return graph(self._set_up, input_signature=[tf.TensorSpec((), tf.int32)])

    def _set_up(self, batch_size: Any) -> Any:
        self._batch_size.assign(batch_size)
        self._stage.load()

    def add_part(self, data: Structure) -> Logs:
        """Run the model's own step on one micro-batch; returns the logs as of this micro-batch."""
        leaves = [as_tensor(leaf) for leaf in keras.tree.flatten(data) if leaf is not None]
        logs, slices = self._function_for(data, leaves)(leaves)
        self._keep(slices)
        return dict(logs)

    def without_xla(self) -> bool:
        """Go on without XLA, which may abort the process on the next attempt; False if it was off."""
        if not self._jit_compile:
            return False
        self._jit_compile = False
        self._functions.clear()
        return True

    def _update(self, captured: list[tuple[Any, Any]]) -> Slices:
        """What is to be done with gradients, while tracing."""
        raise NotImplementedError

    def _keep(self, slices: Slices) -> None:
        """What is to be done with sparse gradients, after each micro-batch."""
        raise NotImplementedError

    def _function_for(self, data: Structure, leaves: list[Any]) -> Any:
        """One trace for all batch sizes; a new one only when another dimension changes."""
        # Not the data itself: a traced function keeps what it refers to alive.
        structure = keras.tree.map_structure(lambda leaf: None if leaf is None else str(leaf.dtype), data)
        if self.model.run_eagerly:
            return lambda tensors: self._run_step(structure, tensors)
        key = str(structure)
        specs, function = self._functions.get(key, ([], None))
        if function is None or not _take(specs, leaves):
            specs = self._widen(specs, leaves)
            function = graph(
                lambda tensors: self._run_step(structure, tensors),
                input_signature=[specs],
                jit_compile=self._jit_compile,
            )
            self._functions[key] = (specs, function)
        return function

    def _widen(self, specs: list[Any], leaves: list[Any]) -> list[Any]:
        """Specs that take these leaves and all that came before; the batch dimension is open."""
        first = slice(0, 1) if self.why_not_split is None else slice(0, 0)
        shapes = [[None] * len(leaf.shape[first]) + leaf.shape.as_list()[first.stop :] for leaf in leaves]
        if specs:
            shapes = [
                [old if old == new else None for old, new in zip(spec.shape, shape, strict=True)]
                for spec, shape in zip(specs, shapes, strict=True)
            ]
        return [tf.TensorSpec(shape, leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]

    def _run_step(self, structure: Structure, tensors: list[Any]) -> tuple[Logs, Slices]:
        remaining = iter(tensors)
        data = keras.tree.map_structure(lambda leaf: None if leaf is None else next(remaining), structure)
        part = Part(self._share_kind, tf.shape(tensors[0])[0], self._batch_size.read_value())
        captured: list[tuple[Any, Any]] = []
        with self._stage.scope() as scope, ExitStack() as overrides:
            for override in self._overrides(part, captured):
                overrides.enter_context(override)
            logs: Logs = getattr(self.model, self.step_name)(data)
        slices = self._update(captured)
        self._stage.keep(scope)
        return logs, slices

    def _overrides(self, part: Part, captured: list[tuple[Any, Any]]) -> list[Any]:
        """What is different while the step runs: the update is captured, losses count by share."""

        def capture(gradients: Any, variables: Any = None) -> None:
            captured.extend(zip(gradients, variables, strict=True))

        def compute_loss(x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True) -> Any:
            del x, training
            self._look_for_obstacles(y_pred, sample_weight)
            losses = []
            if (compiled := keras_internals.compiled_loss(self.model)) is not None:
                losses.append(part.of_data(compiled(y, y_pred, sample_weight)))
            added = [keras_internals.aggregate_added_loss(self.model, loss) for loss in self.model.losses]
            losses.extend(part.of_batch(loss) for loss in added)
            if not losses:
                raise ValueError("No loss to compute. Provide a `loss` argument in `compile()`.")
            return losses[0] if len(losses) == 1 else keras.ops.sum(losses)

        return [
            overridden(self.model.optimizer, "apply", capture),
            overridden(self.model, "compute_loss", compute_loss),
            self._track_total(keras_internals.loss_tracker(self.model), part),
            *(self._track_output(metric, part) for metric in keras_internals.output_trackers(self.model)),
            *(self._watch_loss(loss) for loss in keras_internals.output_losses(self.model)),
        ]

    def _track_total(self, metric: Any, part: Part) -> Any:
        update = metric.update_state

        def track(value: Any, sample_weight: Any = None) -> Any:
            return update(part.whole(value), sample_weight=sample_weight)

        return overridden(metric, "update_state", track)

    def _track_output(self, metric: Any, part: Part) -> Any:
        """Keras weighs an output's loss by the static batch size, or by one where that is open."""
        update = metric.update_state

        def track(value: Any, sample_weight: Any = None) -> Any:
            del sample_weight
            weight = (
                part.samples if self._weigh_outputs_by_samples else part.of_batch(tf.ones((), value.dtype))
            )
            return update(part.whole(part.of_data(value)), sample_weight=weight)

        return overridden(metric, "update_state", track)

    def _look_for_obstacles(self, y_pred: Any, sample_weight: Any) -> None:
        """While tracing: what only the running model shows against splitting."""
        regularised = sum(variable.regularizer is not None for variable in self._trainable)
        if any(keras_internals.mask_of(tensor) is not None for tensor in keras.tree.flatten(y_pred)):
            self._found("an output carries a mask")
        if len(self.model.losses) > regularised:
            self._found("a layer adds a loss of its own")
        if self._share_kind == "weights" and sample_weight is not None:
            self._found("its loss averages over sample weights")

    def _watch_loss(self, loss: Any) -> Any:
        """Notice a loss function that returns one number for the whole batch instead of one per sample."""
        call = loss.call

        def watched(y_true: Any, y_pred: Any) -> Any:
            values = call(y_true, y_pred)
            if len(values.shape) == 0:
                self._found(f"its loss {loss.name} is one number for the whole batch")
            elif not self.model.run_eagerly and values.shape[0] is not None:
                self._found(f"its loss {loss.name} does not keep the samples apart")
            elif keras_internals.mask_of(values) is not None:
                self._found(f"its loss {loss.name} leaves some labels out")
            return values

        return overridden(loss, "call", watched)

    def _found(self, obstacle: str) -> None:
        self.why_not_split = self.why_not_split or obstacle


class TwoPhaseStep(StagedStep):
    """A training step in two phases.

    >>> step = TwoPhaseStep(model)
    >>> step.begin(batch_size=64)
    >>> for part in parts(batch, 16):
    ...     logs = step.add_part(part)
    >>> step.commit()
    """

    step_name = "train_step"

    def __init__(self, model: Any, *, weigh_outputs_by_samples: bool = True) -> None:
        super().__init__(model, weigh_outputs_by_samples=weigh_outputs_by_samples)
        self._accumulators = Accumulators(self._trainable)
        self._commit = Commit(model.optimizer, self._accumulators, self._stage, eager=model.run_eagerly)
        self._zeroed = 0

    def begin(self, batch_size: int) -> None:
        """Begin a step: nothing accumulated, a stage and a way back that hold what the model holds."""
        self._commit.remember([])
        self._accumulators.forget(eager=self.model.run_eagerly)
        if self._begin is None or self._zeroed != self._accumulators.count:
            self._begin, self._zeroed = self._begin_graph(), self._accumulators.count
        self._commit.remember(self._begin(as_tensor(np.array(batch_size, np.int32))))

    def _set_up(self, batch_size: Any) -> Any:
        super()._set_up(batch_size)
        self._accumulators.zero()
        return self._commit.references()

    def commit(self) -> Exception | None:
        """Change the model by what was gathered; on any failure change nothing.

        Returns the out-of-memory error that the commit survived, if there was one.
        """
        return self._commit.run()

    def _update(self, captured: list[tuple[Any, Any]]) -> Slices:
        return self._accumulators.add([g for g, _ in captured], [v for _, v in captured])

    def _keep(self, slices: Slices) -> None:
        self._accumulators.keep(slices)


class EvaluationStep(StagedStep):
    """A step of evaluation: metrics move on the stage, and are published when all parts went through."""

    step_name = "test_step"

    def __init__(self, model: Any, *, weigh_outputs_by_samples: bool = True) -> None:
        super().__init__(model, weigh_outputs_by_samples=weigh_outputs_by_samples)
        self._publish = graph(self._stage.publish)

    def commit(self) -> None:
        """Publish the metrics; old and new values change places, so that no memory is needed."""
        self._publish()

    def _update(self, captured: list[tuple[Any, Any]]) -> Slices:
        assert not captured, "evaluation updates no weights"
        return {}

    def _keep(self, slices: Slices) -> None:
        del slices


def _take(specs: list[Any], leaves: list[Any]) -> bool:
    return all(spec.shape.is_compatible_with(leaf.shape) for spec, leaf in zip(specs, leaves, strict=True))
