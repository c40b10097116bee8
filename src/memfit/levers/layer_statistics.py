"""A model run once, forward and backward, to see what each of its layers makes of what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from memfit.levers.float32_layers import layers_behind, own_variables
from memfit.machine import is_oom
from memfit.model.snapshots import Recording, untouched
from memfit.model.training_data import declared_inputs
from memfit.private.keras.global_state import borrowed_global_seed, outside_scopes
from memfit.private.keras.layers import (
    each_call,
    layers_and_self,
    owners_of_losses,
)
from memfit.private.keras.losses_and_metrics import compiled_loss, loss_in_training
from memfit.private.tensorflow.variables import backing_variable

_OPEN_DIMENSION = 64  # where a model leaves open how long its samples are
_ROWS = 2


@dataclass(frozen=True)
class TrialBatch:
    """A few samples to run a model on; without targets, the mean of its outputs stands for the loss."""

    x: Any
    y: Any = None
    sample_weight: Any = None


@dataclass
class SeenLayer:
    """One call of a layer, or of an operation between layers, and whether its numbers are finite."""

    operation: Any
    given: list[Any]
    around: tuple[SeenLayer, ...]  # the calls that it is a part of
    result: list[Any] = field(default_factory=list)
    was_given_finite: bool = True
    is_finite: bool = True
    has_finite_gradients: bool = True  # of what it was given, of its result, and of its weights


class LayerStatistics:
    """One forward and one backward pass in training mode; nothing of it stays with the model."""

    def __init__(self, model: Any, batch: TrialBatch, *, layer_by_layer: bool = False) -> None:
        self.calls: list[SeenLayer] = []  # in the order in which they began
        self.error: Exception | None = None
        self.failed: Any = None  # the layer or operation whose own code raised it
        self.is_finite = False  # outputs, loss, and gradients of all weights
        self.makers: list[Any] = []  # the layers that outputs come from as they are
        self._layer_by_layer = layer_by_layer
        self._around: list[SeenLayer] = []
        with untouched(model), _unwritten(model), borrowed_global_seed(), Recording() as scope:
            try:
                self._run(model, batch)
            except Exception as error:
                if is_oom(error):
                    raise
                self.error = error
        self.written = set(scope.updates)  # by the identity of the variable
        for seen in self.calls:
            seen.given, seen.result = [], []

    def _run(self, model: Any, batch: TrialBatch) -> None:
        with tf.GradientTape() as tape:
            with each_call(self._note):
                outputs = model(batch.x, training=True)
            self._check_losses(model)
            loss = _loss(model, batch, outputs)
        self._note_makers(outputs)
        weights = [backing_variable(variable) for variable in model.trainable_variables]
        tensors = [[*seen.given, *seen.result] for seen in self.calls]
        of_tensors, of_weights = tape.gradient(loss, (tensors, weights))
        self.is_finite = _are_finite([*_numbers(outputs), loss, *of_weights])
        infinite = {
            id(weight) for weight, slope in zip(weights, of_weights, strict=True) if not _are_finite([slope])
        }
        for seen, slopes in zip(self.calls, of_tensors, strict=True):
            own = {id(backing_variable(variable)) for variable in _weights(seen.operation)}
            seen.was_given_finite, seen.is_finite = _are_finite(seen.given), _are_finite(seen.result)
            seen.has_finite_gradients = _are_finite(slopes) and not own & infinite

    def _check_losses(self, model: Any) -> None:
        """Keras adds up what layers add to the loss in its own type only."""
        low = [loss for loss in model.losses if loss.dtype in (tf.float16, tf.bfloat16)]
        if low:
            self.failed = owners_of_losses(layers_and_self(model), low)[0]
            raise TypeError(f"the loss that layer {self.failed.name} adds is in {low[0].dtype.name}")

    def _note(self, operation: Any, call: Any, given: Any) -> Any:
        seen = SeenLayer(operation, _numbers(given), tuple(self._around))
        self.calls.append(seen)
        self._around.append(seen)
        try:
            result = _with_gradients(seen, call) if self._layer_by_layer else call()
        except Exception:
            if self.failed is None:  # the innermost comes first
                self.failed = operation
            raise
        finally:
            self._around.pop()
        seen.result = _numbers(result)
        return result

    def _note_makers(self, outputs: Any) -> None:
        made = {id(tensor): seen.operation for seen in self.calls for tensor in seen.result}
        for tensor in _numbers(outputs):
            maker = made[id(tensor)]  # of all calls that returned it, the innermost
            if isinstance(maker, keras.Model):  # by code of its own; what it called last is closest to it
                maker = self._last_inside(maker)
            self.makers.extend(layers_behind(maker))

    def _last_inside(self, model: Any) -> Any:
        inside = [seen for seen in self.calls if any(outer.operation is model for outer in seen.around)]
        return inside[-1].operation if inside else model


def attempt(model: Any, batch: TrialBatch) -> LayerStatistics:
    """A pass that says which layer fails if one does, also where that shows in the backward pass only."""
    tried = LayerStatistics(model, batch)
    if tried.error is not None and tried.failed is None:
        again = LayerStatistics(model, batch, layer_by_layer=True)
        return again if again.failed is not None else tried
    return tried


def trial(model: Any) -> tuple[TrialBatch, LayerStatistics] | None:
    """A pass on made-up numbers, and those; None where the model does not run on them as it is."""
    try:
        batch = _sample(model)
        tried = None if batch is None else LayerStatistics(model, batch)
    except Exception:  # noqa: BLE001 - nothing depends on it, and whatever the model says may be wrong
        return None
    return None if batch is None or tried is None or tried.error is not None else (batch, tried)


def overflowing(now: LayerStatistics, before: LayerStatistics) -> list[SeenLayer]:
    """Calls with infinite results of finite inputs, where it was not so before; the innermost ones."""
    found = [
        seen
        for seen, then in zip(now.calls, before.calls, strict=False)
        if then.is_finite and not seen.is_finite and (seen.was_given_finite or not then.was_given_finite)
    ]
    outer = {id(around) for seen in found for around in seen.around}
    return [seen for seen in found if id(seen) not in outer]


def with_infinite_gradients(now: LayerStatistics, before: LayerStatistics) -> list[SeenLayer]:
    """Calls whose gradients are infinite where they were not so before, from the last to the first."""
    pairs = list(zip(now.calls, before.calls, strict=False))
    return [seen for seen, then in pairs[::-1] if then.has_finite_gradients and not seen.has_finite_gradients]


def culprit(tried: LayerStatistics) -> Any:
    """The first layer or operation that makes infinite numbers of finite ones; None where none does."""
    bad = [seen for seen in tried.calls if seen.was_given_finite and not seen.is_finite]
    outer = {id(around) for seen in bad for around in seen.around}
    return next((seen.operation for seen in bad if id(seen) not in outer), None)


def exceeds(layer: Any, dtype: str) -> bool:
    """Whether a weight of the layer itself is out of the range of a type, as its layer would cast it."""
    largest = float(tf.as_dtype(dtype).max)
    values = [backing_variable(variable) for variable in own_variables(layer)]
    ranges = [(tf.reduce_min(value), tf.reduce_max(value)) for value in values if tf.size(value) > 0]
    return any(bool(least < -largest) or bool(most > largest) for least, most in ranges)


def batch_of(data: Any) -> TrialBatch:
    """The user's batch as tensors; floating-point numbers as Keras would cast them."""

    def tensor(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        return tf.cast(leaf, keras.config.floatx()) if leaf.dtype == tf.float64 else leaf

    parts = keras.tree.map_structure(lambda leaf: None if leaf is None else tensor(leaf), data)
    return TrialBatch(*keras.utils.unpack_x_y_sample_weight(parts))


def _sample(model: Any) -> TrialBatch | None:
    """A batch of ones as the model takes it, as far as the model says; None where it does not."""
    specs = declared_inputs(model)
    if specs is None:
        return None
    return TrialBatch(keras.tree.map_structure(lambda spec: _ones(spec.shape, spec.dtype), specs))


@contextmanager
def _unwritten(model: Any) -> Iterator[None]:
    """Take back what layers write to variables of TensorFlow's own, of which Keras knows nothing."""
    values = [value for layer in layers_and_self(model) for value in vars(layer).values()]
    before = [(value, tf.identity(value)) for value in values if isinstance(value, tf.Variable)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _ones(shape: Any, dtype: Any) -> Any:
    rows, *others = shape
    sizes = (rows or _ROWS, *(_OPEN_DIMENSION if size is None else size for size in others))
    return tf.fill(sizes, "") if dtype == "string" else tf.ones(sizes, dtype)


def _with_gradients(seen: SeenLayer, call: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(seen.given)
        result = call()
    weights = [backing_variable(variable) for variable in _weights(seen.operation)]
    tape.gradient(_numbers(result), [*seen.given, *weights])
    return result


def _loss(model: Any, batch: TrialBatch, outputs: Any) -> Any:
    compiled = compiled_loss(model)
    if compiled is None or batch.y is None:
        means = [tf.reduce_mean(tf.cast(output, tf.float32)) for output in _numbers(outputs)]
        return tf.add_n([*means, *(tf.cast(loss, tf.float32) for loss in model.losses)])
    if not compiled.built:
        with outside_scopes():
            compiled.build(batch.y, outputs)
    loss = loss_in_training(model, batch.x, batch.y, outputs, batch.sample_weight)
    return tf.cast(loss, tf.float32)


def _weights(operation: Any) -> list[Any]:
    return list(operation.trainable_variables) if isinstance(operation, keras.Layer) else []


def _numbers(structure: Any) -> list[Any]:
    """The tensors of numbers in a structure that have a value, and a gradient."""
    return [
        leaf
        for leaf in keras.tree.flatten(structure)
        if isinstance(leaf, tf.Tensor) and not tf.is_symbolic_tensor(leaf) and leaf.dtype.is_floating
    ]


def _are_finite(tensors: list[Any]) -> bool:
    values = [tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor for tensor in tensors]
    return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in values if value is not None)
