"""The losses and metrics of a compiled model, wrapped, and computed without noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.private.keras.trainer import optimizers_of
from memfit.private.patching import overridden, replaced


def loss_in_training(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The loss that a model trains on, with what its layers add, by its own `compute_loss`."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)


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
