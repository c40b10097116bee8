"""What part of the batch's loss a micro-batch's loss is, so that the parts add up to the whole exactly.

A mean over samples counts by samples, a sum counts fully, a mean over sample weights counts by weights.
Regularisation belongs to the batch as a whole and is spread over its parts by samples.
"""

from __future__ import annotations

from typing import Any, Literal

import keras
import tensorflow as tf

from memfit.runs import keras_internals

ShareKind = Literal["samples", "sum", "weights"]

_KINDS: dict[str | None, ShareKind] = {
    "sum_over_batch_size": "samples",
    "mean": "samples",
    "sum": "sum",
    "mean_with_sample_weight": "weights",
}


def share_kind(model: Any) -> ShareKind | None:
    """How the model's losses add up over micro-batches; None when they differ or do not add up."""
    kinds = {_KINDS.get(getattr(loss, "reduction", None)) for loss in keras_internals.output_losses(model)}
    return kinds.pop() if len(kinds) == 1 else None


def why_not_split(model: Any) -> str | None:
    """What in the compiled model stands against splitting its batches; None when nothing does."""
    losses = keras_internals.output_losses(model)
    if share_kind(model) is None:
        reductions = ", ".join(str(getattr(loss, "reduction", "unknown")) for loss in losses)
        return f"its losses cannot be added up over parts of a batch (reductions: {reductions or 'no loss'})"
    for loss in losses:
        if type(loss).__call__ is not keras.Loss.__call__ or isinstance(loss, keras.losses.Circle):
            return f"its loss {loss.name} does not keep the samples apart"
    if type(model.optimizer).apply_gradients is not keras.optimizers.Optimizer.apply_gradients:
        return "its optimizer changes gradients in an apply_gradients of its own"
    if any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        return "its inputs have a fixed batch size"
    if any(getattr(layer, "stateful", False) for layer in keras_internals.all_layers(model)):
        return "a layer carries state from one batch to the next"
    return None


def what_a_split_changes(model: Any) -> list[str]:
    """What is not the same any more when batches are split, in words; empty when everything is."""
    layers = keras_internals.all_layers(model)
    notes = []
    if any(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in layers):
        notes.append("BatchNormalization takes its statistics from micro-batches.")
    if any(keras_internals.seed_of(layer) is not None for layer in layers):
        notes.append("Random layers such as Dropout draw for each micro-batch.")
    return notes


class Part:
    """How much of the whole batch one micro-batch is; scalars, eager or in the graph."""

    def __init__(self, kind: ShareKind | None, samples: Any, batch_size: Any) -> None:
        self.samples = samples
        self._kind = kind
        self._batch_size = batch_size

    def of_data(self, loss: Any) -> Any:
        """A data loss as its part of the batch's."""
        return loss if self._kind == "sum" else self.of_batch(loss)

    def of_batch(self, value: Any) -> Any:
        """A value of the batch as a whole, spread by samples."""
        return value * (tf.cast(self.samples, value.dtype) / tf.cast(self._batch_size, value.dtype))

    def whole(self, part: Any) -> Any:
        """The value whose mean, weighted by samples, makes the batch's loss again."""
        return part * (tf.cast(self._batch_size, part.dtype) / tf.cast(self.samples, part.dtype))
