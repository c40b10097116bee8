"""The computation of one step on one micro-batch: Keras' or the user's own code, weighed and captured.

A computation runs eagerly or while it is traced, inside a stage. It changes no variable: updates are
captured, and everything else that it assigns stays on the stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import tensorflow as tf

from memfit.guarding.step.loss_weights import Kind, LossWeights
from memfit.model.snapshots import TracedDraws
from memfit.model.traced_functions import is_in_graph
from memfit.model.training_data import is_keras_own, is_known_to_add_up, why_batch_is_fixed, why_not_split
from memfit.private.keras.global_state import global_seed_states, outside_scopes
from memfit.private.keras.layers import all_layers, comes_from_keras, mask_of
from memfit.private.keras.losses_and_metrics import (
    function_of,
    loss_tracker,
    metric_function,
    other_metrics,
    output_losses,
    output_trackers,
    wrapped_added_losses,
    wrapped_output_losses,
)
from memfit.private.keras.trainer import captured_updates
from memfit.private.patching import overridden, replaced


@dataclass
class Update:
    """One update of weights that a step wanted to make."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]


@dataclass
class Captured:
    """The weight updates that a step asked for, and the reasons against doing them later or in parts."""

    updates: list[Update] = field(default_factory=list)
    hindrances: list[str] = field(default_factory=list)  # against splitting
    unstaged: list[str] = field(default_factory=list)  # against running it on a stage at all


class Computation(Protocol):
    """One kind of step: its code, and the variables that it may move."""

    model: Any
    eager: bool
    jit_compile: bool
    draws: TracedDraws
    outputs_must_be: tuple[Kind, ...]
    outputs_are: Kind

    @property
    def output_count(self) -> int:
        """The number of outputs that have a loss of their own."""
        ...

    def may_move(self) -> list[Any]:
        """The variables that a step is known to assign to, besides the weights."""
        ...

    def trained(self) -> list[Any]:
        """The weights that a step may update, as far as they are known."""
        ...

    def run(self, data: Any, shares: LossWeights) -> tuple[Any, Captured]:
        """Run the step on a micro-batch: what it returns, and what it wanted to do to the weights."""
        ...

    def run_plain(self, data: Any) -> Any:
        """Run the step as it is, weights changing."""
        ...

    def why_not_split(self) -> str | None:
        """The known reason against splitting batches; None where there is none."""
        ...

    def doubts(self) -> str | None:
        """Why it has to be tried whether the parts of a batch add up; None where it is known."""
        ...


class ModelStep:
    """A model's own `train_step` or `test_step`."""

    outputs_must_be: tuple[Kind, ...] = ()
    outputs_are: Kind = "last"

    def __init__(self, model: Any, step_name: str, *, weigh_outputs_by_samples: bool = True) -> None:
        self.model = model
        self.eager = bool(model.run_eagerly)
        self.jit_compile = bool(model.jit_compile)
        self._step_name = step_name
        self.draws = TracedDraws()
        self.weighs_outputs_by_samples = weigh_outputs_by_samples

    @property
    def output_count(self) -> int:
        """The number of outputs that have a loss."""
        return len(output_losses(self.model))

    def may_move(self) -> list[Any]:
        """Statistics, seeds and metrics."""
        return [
            *self.model.non_trainable_variables,
            *self.model.metrics_variables,
            *global_seed_states(),
        ]

    @property
    def trains(self) -> bool:
        """Whether it updates weights."""
        return self._step_name == "train_step"

    def trained(self) -> list[Any]:
        """The model's trainable weights."""
        return list(self.model.trainable_variables) if self.trains else []

    def run_plain(self, data: Any) -> Any:
        """Run the model's own step."""
        step = getattr(self.model, self._step_name)
        with self.draws.repeated():
            return getattr(step, "python_function", step)(data)

    def run(self, data: Any, shares: LossWeights) -> tuple[Any, Captured]:
        """Run the model's own step, its losses weighed and its update captured."""
        with captured_by_tape() as captured, ExitStack() as overrides:
            for override in self._overrides(shares):
                overrides.enter_context(override)
            logs = self.run_plain(data)
        return logs, captured

    def why_not_split(self) -> str | None:
        """Fixed sizes, state from batch to batch, samples that are compared with each other."""
        return why_not_split(self.model, trains=self.trains)

    def doubts(self) -> str | None:
        """Anything that is not Keras' own may mix samples, or take its mean in a way of its own."""
        model = self.model
        for name in (self._step_name, "compute_loss", "compute_metrics"):
            if not is_keras_own(model, name):
                return f"{type(model).__name__} has its own {name}"
        for loss in output_losses(model) or _given_losses(model):
            if not is_known_to_add_up(loss):
                return f"its loss {getattr(loss, 'name', loss)} is not one of Keras' that add up"
        for layer in all_layers(model):
            if not comes_from_keras(type(layer)) or isinstance(
                layer, keras.layers.Lambda | keras.layers.SpectralNormalization
            ):
                return f"its layer {layer.name} may do anything"
        metrics = other_metrics(model)
        functions = [function_of(metric) for metric in metrics]
        for part in (model, model.optimizer, *metrics, *functions):
            kind = part if inspect.isfunction(part) else type(part)
            if part is not None and not comes_from_keras(kind):
                return f"{getattr(kind, '__name__', kind)} is not Keras' own"
        return None

    def _overrides(self, shares: LossWeights) -> Iterator[Any]:
        model = self.model
        yield wrapped_output_losses(model, shares.output_loss)
        yield wrapped_added_losses(model, shares.added_loss)
        if (tracker := loss_tracker(model)) is not None:
            yield _tracking_total(tracker, shares)
        for metric in output_trackers(model):
            yield self._tracking_output(metric, shares)
        for metric in other_metrics(model):
            if _updates_like(metric, keras.metrics.MeanMetricWrapper):
                yield _counting_batches(metric, shares)
            elif _updates_like(metric, keras.metrics.Mean) or _updates_like(metric, keras.metrics.Sum):
                yield _taking_numbers(metric, shares)

    def _tracking_output(self, metric: Any, shares: LossWeights) -> Any:
        """Keras weighs an output's loss by the static batch size, or by one where that is open."""
        update = metric.update_state

        def track(value: Any, sample_weight: Any = None) -> Any:
            del sample_weight
            weight = (
                shares.samples
                if self.weighs_outputs_by_samples
                else shares.by_samples(tf.ones((), value.dtype))
            )
            return update(shares.whole_output(value), sample_weight=weight)

        return overridden(metric, "update_state", track)


class Prediction:
    """A model's own `predict_step`."""

    output_count = 0
    outputs_must_be: tuple[Kind, ...] = ("rows",)
    outputs_are: Kind = "rows"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.draws = TracedDraws()
        self.eager = bool(getattr(model, "run_eagerly", False))
        self.jit_compile = bool(getattr(model, "jit_compile", False))

    def may_move(self) -> list[Any]:
        """Seeds, where a model draws random numbers in prediction."""
        return [*self.model.non_trainable_variables, *global_seed_states()]

    def trained(self) -> list[Any]:
        """None."""
        return []

    def run_plain(self, data: Any) -> Any:
        """Run the model's own step."""
        step = self.model.predict_step
        with self.draws.repeated():
            return getattr(step, "python_function", step)(data)

    def run(self, data: Any, shares: LossWeights) -> tuple[Any, Captured]:
        """Run the model's own step."""
        del shares
        with captured_by_tape() as captured:
            outputs = self.run_plain(data)
        return outputs, captured

    def why_not_split(self) -> str | None:
        """Fixed sizes, state from batch to batch."""
        return why_batch_is_fixed(self.model)

    def doubts(self) -> str | None:
        """Outputs may mix samples, or not have a row for each."""
        if is_keras_own(self.model, "predict_step") and all(
            comes_from_keras(type(layer)) for layer in (self.model, *all_layers(self.model))
        ):
            return None
        return f"{type(self.model).__name__} is not Keras' own throughout"


class LossFunction:
    """A loss function of the user's with the optimizer and the variables of a custom loop."""

    model = None
    output_count = 0
    outputs_must_be: tuple[Kind, ...] = ("mean", "sum", "last", "rows")
    outputs_are: Kind = "mean"

    def __init__(self, function: Callable[..., Any], optimizer: Any, variables: list[Any]) -> None:
        self.eager = False
        self.jit_compile = False
        self._function = getattr(function, "python_function", function)
        self.optimizer = optimizer
        self._variables = variables
        self.draws = TracedDraws()

    def may_move(self) -> list[Any]:
        """Found out while tracing; only the global seed is known."""
        return global_seed_states()

    def trained(self) -> list[Any]:
        """The variables that were given."""
        return self._variables

    def run_plain(self, data: Any) -> Any:
        """The loss and what comes with it, and the update."""
        with tf.GradientTape() as tape, self.draws.repeated():
            outputs = self._function(*data)
            loss = self.optimizer.scale_loss(_loss_of(outputs))
        self.optimizer.apply(tape.gradient(loss, self._variables), self._variables)
        return outputs

    def run(self, data: Any, shares: LossWeights) -> tuple[Any, Captured]:
        """The loss and what comes with it; the update captured."""
        del shares
        with captured_by_tape() as captured:
            outputs = self.run_plain(data)
        return outputs, captured

    def why_not_split(self) -> None:
        """Nothing is known of it."""

    def doubts(self) -> str | None:
        """Whether it is a mean or a sum is not known."""
        return "the loss is the user's own"


def _loss_of(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs


@contextmanager
def captured_by_tape() -> Iterator[Captured]:
    """Capture every update of the block, and notice gradients that are not what a tape returned."""
    captured = Captured()
    from_tapes: list[Any] = []
    gradient_of = tf.GradientTape.gradient

    def gradient(tape: Any, *arguments: Any, **options: Any) -> Any:
        result = gradient_of(tape, *arguments, **options)
        from_tapes.extend(keras.tree.flatten(result))
        return result

    def capture(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if here is not graph or any(not is_in_graph(g, graph) for g in gradients):
            captured.unstaged.append("the step updates its weights under a condition or in a loop")
        known = {id(tensor) for tensor in from_tapes}
        if any(g is not None and id(g) not in known for g in gradients):
            captured.hindrances.append("gradients are changed between the tape and the update")
        if not optimizer.built:
            with outside_scopes():
                optimizer.build(variables)
        captured.updates.append(Update(optimizer, gradients, variables))

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with replaced(tf.GradientTape, "gradient", gradient), captured_updates(capture):
        yield captured
    if len(captured.updates) > 1:
        captured.unstaged.append(f"the step makes {len(captured.updates)} updates")


def _tracking_total(metric: Any, shares: LossWeights) -> Any:
    """The epoch's loss: Keras gives it the batch's loss, weighed by samples."""
    update = metric.update_state

    def track(value: Any, sample_weight: Any = None) -> Any:
        if len(value.shape) > 0:  # a loss without reduction, of which Keras takes the mean
            return update(value, sample_weight=sample_weight)
        if sample_weight is None:
            return _take_number(metric, update, value, shares)
        kind = shares.observe(value, f"The metric {metric.name}", usually="sum")
        return update(shares.whole(value) if kind == "sum" else value, sample_weight=sample_weight)

    return overridden(metric, "update_state", track)


def _taking_numbers(metric: Any, shares: LossWeights) -> Any:
    """A metric that the step gives one number for each batch."""
    update = metric.update_state

    def take(values: Any, sample_weight: Any = None) -> Any:
        values = tf.convert_to_tensor(values)
        if len(values.shape) > 0 or sample_weight is not None or not values.dtype.is_floating:
            return update(values, sample_weight=sample_weight)
        return _take_number(metric, update, values, shares)

    return overridden(metric, "update_state", take)


def _take_number(metric: Any, update: Callable[..., Any], value: Any, shares: LossWeights) -> Any:
    kind = shares.observe(value, f"The metric {metric.name}", usually="mean")
    if isinstance(metric, keras.metrics.Sum):
        return update(value if kind == "sum" else shares.by_samples(value))
    weight = shares.by_samples(tf.ones((), value.dtype))
    return update(shares.whole(value) if kind == "sum" else value, sample_weight=weight)


def _updates_like(metric: Any, kind: Any) -> bool:
    """Whether a metric takes values as this kind of metric does; subclasses may take something else."""
    return type(metric).update_state is kind.update_state


def _counting_batches(metric: Any, shares: LossWeights) -> Any:
    """A metric function that returns one number for a batch counts batches, not parts of them."""
    update = metric.update_state

    def count(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None and mask_of(y_pred) is None:
            values = tf.convert_to_tensor(metric_function(metric)(y_true, y_pred))
            if len(values.shape) == 0 and values.dtype.is_floating:
                mean_update = keras.metrics.Mean.update_state.__get__(metric)
                return _take_number(metric, mean_update, values, shares)
        return update(y_true, y_pred, sample_weight=sample_weight)

    return overridden(metric, "update_state", count)


def _given_losses(model: Any) -> list[Any]:
    """The losses and functions that a model was compiled with, before Keras has made a loss of each."""
    given = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    return [keras.losses.get(loss) for loss in keras.tree.flatten(given) if loss is not None]
