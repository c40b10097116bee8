"""The data of a training: the batches that a call of `fit` takes, their shapes, whether they may be split.

Shapes and types come from the data, or else from what the model itself says.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.core.errors import CannotEstimate
from memfit.private.keras.layers import all_layers, built_shapes, comes_from_keras, functional_of
from memfit.private.keras.losses_and_metrics import output_losses
from memfit.private.tensorflow.datasets import batch_size_of, runs_python, unwrapped

Specs = Any  # a structure of TensorSpecs


@dataclass(frozen=True)
class WholeBatch:
    """A batch with all that a step is given: where it has no targets, the step takes none."""

    data: Any


def training_specs(model: Any, data: Any) -> tuple[Specs, ...]:
    """Specs of (x, y) or (x, y, sample_weight), the batch dimension open.

    `data` is a batch, a dataset or specs, of all of it or of x alone; what it does not say comes from the
    model and its loss.
    """
    if isinstance(data, WholeBatch):
        return batch_specs(data.data)
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
    for spec in leaves_of(specs):
        _check(spec)
    return specs


def as_step_takes(parts: tuple[Any, ...]) -> Any:
    """The parts of a training batch as Keras hands them to a step: without targets, x alone."""
    return keras.utils.pack_x_y_sample_weight(*parts) if len(parts) == 1 else parts


def leaves_of(structure: Any) -> list[Any]:
    """The leaves of a structure without optional inputs that are None."""
    return [leaf for leaf in keras.tree.flatten(structure) if not is_left_out(leaf)]


def filled(structure: Any, leaves: Iterable[Any]) -> Any:
    """A structure with these in the place of its leaves; optional inputs that are None stay so."""
    given = iter(leaves)
    return keras.tree.map_structure(lambda leaf: None if is_left_out(leaf) else next(given), structure)


def is_left_out(leaf: Any) -> bool:
    """Whether a leaf of data or its specs stands for an optional input that is None."""
    return leaf is None or isinstance(leaf, tf.OptionalSpec | tf.experimental.Optional)


def open_batch(shape: Any) -> tuple[int | None, ...]:
    """A shape with its first dimension, that of the batch, open."""
    return (None, *shape[1:])


def declared_inputs(model: Any) -> Specs | None:
    """Specs of a model's inputs as its graph of layers or its build has them; None before it is built."""
    functional = functional_of(model)
    if functional is not None:
        return keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), functional.input)
    shapes = built_shapes(model)
    if shapes is None:
        return None
    return keras.tree.map_shape_structure(
        lambda shape: tf.TensorSpec(open_batch(shape), keras.config.floatx()), shapes
    )


def _of_inputs(model: Any) -> Specs:
    specs = declared_inputs(model)
    if specs is None:
        raise CannotEstimate(
            "nothing says the shapes of its inputs: it was never built",
            suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
        )
    for spec in leaves_of(specs):
        _check(spec)
    return specs


def _of_targets(model: Any, x: Specs) -> Specs:
    """As the losses want them: class numbers where they are sparse, else what the model returns."""
    symbolic = keras.tree.map_structure(
        lambda s: None if s is None else keras.KerasTensor(s.shape, s.dtype.name), x
    )
    functional = functional_of(model)
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
        return tf.TensorSpec(open_batch(output.shape[:-1]), tf.int32)
    return tf.TensorSpec(open_batch(output.shape), keras.backend.standardize_dtype(output.dtype))


def _opened(leaf: Any) -> Any:
    if is_left_out(leaf):
        return None
    shape = tf.TensorShape(leaf.shape)
    if shape.rank == 0:
        raise CannotEstimate(
            "its data holds a single number, not rows of samples",
            suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
        )
    return tf.TensorSpec(open_batch(shape), tf.as_dtype(leaf.dtype))


def _check(spec: Any) -> None:
    if spec.shape.rank is None or None in spec.shape[1:]:
        raise CannotEstimate(
            f"an input of shape {tuple(spec.shape)} has an open dimension besides the batch",
            suggestion="memfit.estimate(model, batch_size=32, data=(x[:1], y[:1]))",
        )


_BATCH_SIZE = 32  # that of Keras


def batches_of(arguments: dict[str, Any], samples: int = 1) -> tuple[int | None, Any]:
    """Their size, None where it is not known beforehand; and a batch of so many samples, or the dataset."""
    x = arguments["x"]
    if takes_batch_size(x):
        parts = (x, arguments.get("y"), arguments.get("sample_weight"))
        kept = tuple(as_arrays(part) for part in parts if part is not None)
        count, size = len(leaves_of(kept)[0]), arguments.get("batch_size")
        size = _BATCH_SIZE if size is None else size
        known = isinstance(size, int) and size > 0  # else Keras says what is wrong
        return min(size, count) if known else None, _first(kept, samples)
    if isinstance(x, tf.data.Dataset):
        sizes = {spec.shape[0] for spec in leaves_of(x.element_spec) if spec.shape.rank}
        size = sizes.pop() if len(sizes) == 1 else None
        return (size or batch_size_of(x), x) if not sizes else (None, None)
    return None, None


def samples_of(arguments: dict[str, Any], count: int) -> Any:
    """The first samples that `fit` is going to take; None where they cannot be had without taking them."""
    return batches_of(arguments, count)[1] if takes_batch_size(arguments["x"]) else None


def _first(batch: Any, count: int) -> Any:
    return keras.tree.map_structure(lambda array: None if array is None else array[:count], batch)


def takes_batch_size(x: Any) -> bool:
    """Whether Keras makes batches of this itself: arrays, not batches already."""
    return x is not None and can_stay_on_host((as_arrays(x), None, None))


def is_made_by_python(x: Any) -> bool:
    """Whether Python code makes the batches while training runs, as that of a generator does, in a thread."""
    if isinstance(x, tf.data.Dataset):
        return runs_python(unwrapped(x))
    return isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__")


def as_arrays(data: Any) -> Any:
    """Pandas objects and tensors of the CPU as the arrays that they are made of; all else as it is."""

    def convert(leaf: Any) -> Any:
        if type(leaf).__module__.startswith("pandas.") and hasattr(leaf, "to_numpy"):
            array = leaf.to_numpy()
            return array[:, None] if array.ndim == 1 else array  # Keras makes a column of a Series
        if isinstance(leaf, tf.Tensor) and "CPU" in leaf.device:
            return leaf.numpy()
        return leaf

    return None if data is None else keras.tree.map_structure(convert, data)


def why_not_split(model: Any, *, trains: bool = True) -> str | None:
    """The reason not to split the batches that a compiled model trains or is evaluated on, or None.

    Only what is known before anything runs: fixed sizes, state, samples that are compared or mixed.
    """
    for loss in output_losses(model):
        if isinstance(loss, keras.losses.Circle):
            return f"its loss {loss.name} compares samples with each other"
    for layer in all_layers(model) if trains else ():
        if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
            return f"its layer {layer.name} mixes the samples of a batch"
    return why_batch_is_fixed(model)


# Keras' losses that compare samples with each other, or take them together.
_OF_WHOLE_BATCHES = ("Circle", "Dice", "Tversky", "circle", "dice", "tversky")


def is_known_to_add_up(loss: Any) -> bool:
    """Whether it is one of Keras' losses that have one value for each sample."""
    kind = loss if inspect.isfunction(loss) else type(loss)
    function = inspect.unwrap(getattr(loss, "fn", kind))
    of_whole_batches = [getattr(keras.losses, name) for name in _OF_WHOLE_BATCHES]
    takes_all = kind in of_whole_batches or function in of_whole_batches
    return not takes_all and comes_from_keras(kind) and comes_from_keras(function)


def why_batch_is_fixed(model: Any) -> str | None:
    """The part of a model that ties it to one batch size, or None."""
    if any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        return "its inputs have a fixed batch size"
    if any(getattr(layer, "stateful", False) for layer in all_layers(model)):
        return "a layer carries state from one batch to the next"
    return None


def is_keras_own(model: Any, method: str) -> bool:
    """Whether a model has Keras' own method of this name, neither overridden nor replaced."""
    return method not in vars(model) and getattr(type(model), method) is getattr(keras.Model, method)


def can_stay_on_host(data: Any) -> bool:
    """Whether all of it is plain NumPy arrays with the same number of samples."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    return all(_is_plain_array(leaf) for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1


def _is_plain_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0 and leaf.dtype.kind in "fiub"
