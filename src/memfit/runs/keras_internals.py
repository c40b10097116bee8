"""Every private name of Keras that guarded training relies on, each behind a function.

`tests/facts/test_keras_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.models.internals import backing_variable as backing_variable
from memfit.models.internals import build_everything as build_everything
from memfit.models.internals import compiled_parts as compiled_parts
from memfit.models.internals import mask_of as mask_of
from memfit.models.internals import overridden as overridden
from memfit.models.internals import replaced as replaced
from memfit.models.internals import with_inner as with_inner
from memfit.models.snapshots import Snapshot


class StagedScope(keras.StatelessScope):  # type: ignore[misc]  # Keras is untyped
    """Keras' stateless scope, except that a variable without a staged value is the real one.

    A plain scope gives regularisers None for such a variable, and the tape no handle.
    """

    def __init__(self, staged: list[tuple[Any, Any]]) -> None:
        super().__init__(state_mapping=staged, collect_losses=True, initialize_variables=False)
        self._staged = {id(variable) for variable, _ in staged}
        self.hindrances: list[str] = []
        self.written: dict[int, Any] = {}
        self.strangers: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """The staged value, else the variable itself."""
        value = super().get_current_value(variable)
        return backing_variable(variable) if value is None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take an assignment into the stage, and remember which variable it was for."""
        variable = update[0]
        if variable.trainable and id(variable) not in self._staged:
            self.hindrances.append(f"the step assigns to {variable.path}, which is a trainable weight")
            raise ValueError(self.hindrances[-1])
        if id(variable) not in self._staged:
            self.strangers.append(variable)
        self.written[id(variable)] = variable
        super().add_update(update)


@contextmanager
def outside_scopes() -> Iterator[None]:
    """Create variables for good, although a scope is open and a graph is being traced."""
    from keras.src.backend.common import global_state

    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        with tf.init_scope():
            yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def is_built(model: Any, *, trains: bool, evaluates: bool) -> bool:
    """Whether all layers, and what training or evaluation needs besides, have their variables."""
    optimizer, loss, metrics, _ = compiled_parts(model)
    parts = all_layers(model) + ([optimizer] if trains else []) + ([loss, metrics] if evaluates else [])
    return all(part is None or part.built for part in parts)


def loss_tracker(model: Any) -> Any:
    """The metric that averages the loss over an epoch, or None."""
    return model._loss_tracker


def compiled_loss(model: Any) -> Any:
    """The object that adds up the losses of all outputs, or None without a compiled loss."""
    return model._compile_loss


def output_trackers(model: Any) -> list[Any]:
    """The metrics that average the loss of each output; empty with one output."""
    compiled = compiled_loss(model)
    return [] if compiled is None else list(compiled.metrics)


def other_metrics(model: Any) -> list[Any]:
    """Every metric of the model and its layers but those that Keras keeps for the losses."""
    flat: list[Any] = []
    for metric in model.metrics:
        flat.extend(metric.metrics if metric is model._compile_metrics else [metric])
    own = {id(loss_tracker(model)), *map(id, output_trackers(model))}
    return [metric for metric in flat if id(metric) not in own]


def function_of(metric: Any) -> Any:
    """The function that a metric was made from, or None."""
    return getattr(metric, "_fn", None)


def metric_function(metric: Any) -> Callable[..., Any]:
    """The function that a metric made from a function averages, with its arguments bound."""
    return lambda y_true, y_pred: metric._fn(y_true, y_pred, **metric._fn_kwargs)


def all_layers(model: Any) -> list[Any]:
    """Every layer of a model, nested ones too."""
    return list(model._flatten_layers(include_self=False))


def global_seed_states() -> list[Any]:
    """The state of the generator behind `keras.random` without a seed, once there is one."""
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def output_losses(model: Any) -> list[Any]:
    """The loss object of each output, in order; known once the model is built."""
    compiled = compiled_loss(model)
    return [entry.loss for entry in compiled._flat_losses] if compiled is not None and compiled.built else []


@contextmanager
def wrapped_output_losses(model: Any, wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """Replace the loss of each output by `wrap(place, loss)`, for a while."""
    compiled = compiled_loss(model)
    if compiled is None or not compiled.built:
        yield
        return
    before = compiled._flat_losses
    compiled._flat_losses = [
        entry._replace(loss=wrap(place, entry.loss)) for place, entry in enumerate(before)
    ]
    try:
        yield
    finally:
        compiled._flat_losses = before


def wrapped_added_losses(model: Any, wrap: Callable[[Any], Any]) -> Any:
    """Pass every loss from `add_loss` or a regulariser through `wrap`, for a while."""
    aggregate = model._aggregate_additional_loss
    return overridden(model, "_aggregate_additional_loss", lambda loss: wrap(aggregate(loss)))


def class_weights(y: Any, class_weight: dict[int, float]) -> Any:
    """The weight of each sample from the weight of its class."""
    from keras.src.trainers.data_adapters import data_adapter_utils

    return data_adapter_utils.class_weight_to_sample_weights(y, class_weight)


@contextmanager
def optimizers_kept_whole(model: Any) -> Iterator[None]:
    """Leave no optimizer half built: if its slots do not fit, it is as if nobody had begun."""
    before = Snapshot(optimizer for optimizer in optimizers_of(model) if not optimizer.built)
    try:
        yield
    except BaseException:
        before.restore()
        raise


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a model holds as attributes, and those inside them."""
    held = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    return [one for optimizer in held for one in with_inner(optimizer)]


def strategy_of(model: Any) -> Any:
    """The distribution strategy that the model was created under, or None."""
    return model._distribute_strategy


def optimizer_targets(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


@contextmanager
def captured_updates(capture: Callable[[Any, list[Any], list[Any]], None]) -> Iterator[None]:
    """Hand every `optimizer.apply` of this thread to `capture`, whichever optimizer it is.

    Patched where it is defined, in all classes: the optimizers that a step uses are not known, and one
    that was overlooked would change the weights.
    """
    thread = threading.get_ident()

    def hook(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if threading.get_ident() != thread:
                return original(optimizer, grads, trainable_variables)
            targets = optimizer_targets(optimizer) if trainable_variables is None else trainable_variables
            capture(optimizer, list(grads), list(targets))
            return None

        return apply

    with ExitStack() as patches:
        for kind in _with_subclasses(keras.optimizers.Optimizer):
            owner = next(cls for cls in kind.__mro__ if "apply" in vars(cls))
            if not hasattr(vars(owner)["apply"], "_memfit"):
                hooked = hook(vars(owner)["apply"])
                hooked._memfit = True  # type: ignore[attr-defined]
                patches.enter_context(replaced(owner, "apply", hooked))
        yield


def _with_subclasses(kind: Any) -> list[Any]:
    found = [kind]
    for child in kind.__subclasses__():
        found.extend(_with_subclasses(child))
    return found


_DRAWS_BY_SHAPE = ("normal", "uniform", "truncated_normal", "randint", "gamma", "beta", "binomial")


@contextmanager
def quiet(model: Any) -> Iterator[None]:
    """Let nothing but the samples differ between rows: the same draws for each, no batch statistics."""
    from keras.src.backend import random

    normalise = keras.layers.BatchNormalization.call

    def without_statistics(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        del training
        return normalise(layer, inputs, training=False, mask=mask)

    def same_for_each_row(draw: Callable[..., Any]) -> Callable[..., Any]:
        def quiet_draw(shape: Any, *arguments: Any, **options: Any) -> Any:
            rows = tf.convert_to_tensor(shape, dtype=tf.int32)
            if rows.shape[0] == 0:
                return draw(shape, *arguments, **options)
            one = tf.concat([tf.ones_like(rows[:1]), rows[1:]], axis=0)
            return tf.broadcast_to(draw(one, *arguments, **options), rows)

        return quiet_draw

    with ExitStack() as patches:
        for name in _DRAWS_BY_SHAPE:
            if hasattr(random, name):
                patches.enter_context(replaced(random, name, same_for_each_row(getattr(random, name))))
        patches.enter_context(replaced(random, "dropout", lambda inputs, *_, **__: inputs))
        patches.enter_context(replaced(keras.layers.BatchNormalization, "call", without_statistics))
        for optimizer in [] if model is None else optimizers_of(model):
            patches.enter_context(overridden(optimizer, "scale_loss", lambda loss: loss))  # it may overflow
        yield


@contextmanager
def predictions_on_host(concatenate: Callable[[list[Any]], Any]) -> Iterator[None]:
    """Let `predict` join its batches with `concatenate`, which gets None back where it should not."""
    from keras.src.backend.tensorflow import trainer

    join = trainer.potentially_ragged_concat

    def joined(tensors: list[Any]) -> Any:
        ours = concatenate(tensors)
        return join(tensors) if ours is None else ours

    with replaced(trainer, "potentially_ragged_concat", joined):
        yield
