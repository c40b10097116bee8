"""Shapes and types of a model's batches, from its data or from what the model itself says."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from memfit.errors import CannotEstimate
from memfit.models import internals

Specs = Any  # a structure of TensorSpecs


def training_specs(model: Any, data: Any) -> tuple[Specs, ...]:
    """Specs of (x, y) or (x, y, sample_weight), the batch dimension open.

    `data` is a batch, a dataset or specs, of all of it or of x alone; what it does not say comes from the
    model and its loss.
    """
    if data is None:
        x = _of_inputs(model)
        return x, _of_targets(model, x)
    specs = batch_specs(data)
    return specs if len(specs) > 1 else (*specs, _of_targets(model, specs[0]))


def prediction_specs(model: Any, data: Any) -> tuple[Specs]:
    """Specs of (x,), the batch dimension open."""
    return (_of_inputs(model) if data is None else batch_specs(data)[0],)


def batch_specs(data: Any) -> tuple[Specs, ...]:
    """Specs of the parts of a batch, a dataset or specs, the batch dimension open."""
    given = data.element_spec if isinstance(data, tf.data.Dataset) else data
    parts = given if isinstance(given, tuple) else (given,)
    specs = tuple(keras.tree.map_structure(_opened, part) for part in parts)
    for spec in keras.tree.flatten(specs):
        _check(spec)
    return specs


def _of_inputs(model: Any) -> Specs:
    functional = internals.functional_of(model)
    if functional is not None:
        specs = keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), functional.input)
    else:
        shapes = internals.built_shapes(model)
        if shapes is None:
            raise CannotEstimate(
                "nothing says the shapes of its inputs: it was never built",
                suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
            )
        specs = keras.tree.map_shape_structure(
            lambda shape: tf.TensorSpec((None, *shape[1:]), keras.config.floatx()), shapes
        )
    for spec in keras.tree.flatten(specs):
        _check(spec)
    return specs


def _of_targets(model: Any, x: Specs) -> Specs:
    """As the losses want them: class numbers where they are sparse, else what the model returns."""
    symbolic = keras.tree.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), x)
    functional = internals.functional_of(model)
    outputs = functional.output if functional is not None else model.compute_output_spec(symbolic)
    losses = _losses(model, outputs)
    flat = [_target(output, loss) for output, loss in zip(keras.tree.flatten(outputs), losses, strict=True)]
    return keras.tree.pack_sequence_as(outputs, flat)


def _losses(model: Any, outputs: Any) -> list[Any]:
    """The loss of each output, in the order in which they are flattened."""
    count = len(keras.tree.flatten(outputs))
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    if isinstance(loss, dict) and isinstance(outputs, dict):
        return [loss.get(name) for name in sorted(outputs)]
    flat = keras.tree.flatten(loss) if isinstance(loss, dict | list | tuple) else [loss] * count
    return flat if len(flat) == count else [None] * count


def _target(output: Any, loss: Any) -> Any:
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", None))
    if "sparse" in str(name).lower():
        return tf.TensorSpec((None, *output.shape[1:-1]), tf.int32)
    return tf.TensorSpec((None, *output.shape[1:]), keras.backend.standardize_dtype(output.dtype))


def _opened(leaf: Any) -> Any:
    shape = tf.TensorShape(leaf.shape)
    if shape.rank == 0:
        raise CannotEstimate(
            "its data holds a single number, not rows of samples",
            suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
        )
    return tf.TensorSpec((None, *shape[1:]), tf.as_dtype(leaf.dtype))


def _check(spec: Any) -> None:
    if spec.shape.rank is None or None in spec.shape[1:]:
        raise CannotEstimate(
            f"an input of shape {tuple(spec.shape)} has an open dimension besides the batch",
            suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
        )
