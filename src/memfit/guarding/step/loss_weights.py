"""The share of a micro-batch's loss in the batch's loss, so that the parts add up to the whole exactly.

A mean over samples counts by samples, a mean over valid elements by those, a mean over sample weights by
weights; a sum counts fully. Regularisation belongs to the batch as a whole and is spread by samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from memfit.private.keras.layers import mask_of
from memfit.private.patching import overridden

# How a value of the whole batch follows from those of its parts: their mean by samples, their sum, the
# value after the last part, the rows of all parts one below the other, or in no such way.
Kind = Literal["mean", "sum", "last", "rows", "neither"]
Vector = np.ndarray[Any, Any]

# What the loss of an output is divided by: samples, nothing (a sum), or something that only the data say.
Measure = Literal["samples", "nothing", "data"]

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclass
class Weighing:
    """The kinds by which the values of one step add up over parts; assumed until a split trial has looked."""

    weighs_losses: bool = True  # else the step's own losses stay as they are, and its gradients are weighed
    gradients: Kind = "sum"
    outputs: list[Kind] | None = None
    observed: dict[int, Kind] = field(default_factory=dict)


class LossWeights:
    """The shares of one micro-batch while its step is traced or run: by samples, then by output loss."""

    def __init__(self, vector: Any, samples: Any, weighing: Weighing) -> None:
        self.samples = samples
        self.observed: list[Any] = []
        self.observed_names: list[str | None] = []  # None for a loss that a layer adds
        self.denominators: dict[int, Any] = {}
        self.measures: dict[int, Measure] = {}
        self._vector = vector
        self._weighing = weighing

    def by_samples(self, value: Any) -> Any:
        """A value of the batch as a whole, spread by samples."""
        return value * tf.cast(self._vector[0], value.dtype)

    def whole(self, part: Any) -> Any:
        """The value whose mean, weighted by samples, makes the batch's value again."""
        return part / tf.cast(self._vector[0], part.dtype)

    def of_output(self, place: int, value: Any) -> Any:
        """The loss of one output as its part of the batch's."""
        if not self._weighing.weighs_losses:
            return value
        return value * tf.cast(self._vector[1 + place], value.dtype)

    def observe(self, value: Any, name: str | None, *, usually: Kind) -> Kind:
        """The kind by which a number that the step computes adds up; the split trial sees it."""
        self.observed.append(tf.reduce_sum(value))
        self.observed_names.append(name)
        return self._weighing.observed.get(len(self.observed) - 1, usually)

    def added_loss(self, value: Any) -> Any:
        """A loss from `add_loss` or a regulariser as its part of the batch's."""
        is_sum = self.observe(value, None, usually="mean") == "sum"
        return value if is_sum or not self._weighing.weighs_losses else self.by_samples(value)

    def whole_output(self, part: Any) -> Any:
        """The value whose mean, weighted by samples, makes the batch's loss of one output again."""
        return self.whole(part) if self._weighing.weighs_losses else part

    def output_loss(self, place: int, loss: Any) -> Any:
        """A loss function that returns its part of the batch's loss, and knows what that is measured by."""

        def weighed(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            masks: list[Any] = [mask_of(y_pred)]
            call = loss.call

            def watched(*arguments: Any) -> Any:
                values = call(*arguments)
                masks.append(mask_of(values))
                return values

            with overridden(loss, "call", watched):
                value = loss(y_true, y_pred, sample_weight)
            self.denominators[place], self.measures[place] = _denominator(
                getattr(loss, "reduction", "sum"), masks, sample_weight, self.samples
            )
            return self.of_output(place, value)

        return weighed

    def denominator_vector(self, outputs: int) -> Any:
        """The denominators of the shares: the samples, then for each output its own measure (0: a sum)."""
        measured = [self.denominators.get(place, 0) for place in range(outputs)]
        return tf.stack([tf.cast(measure, tf.float64) for measure in (self.samples, *measured)])


def _denominator(
    reduction: str | None, masks: list[Any], sample_weight: Any, samples: Any
) -> tuple[Any, Measure]:
    """The denominator of a micro-batch's loss, up to a factor that is the same for all, and its measure."""
    if reduction not in _MEANS:
        return 0, "nothing"
    masks = [tf.cast(mask, tf.float64) for mask in masks if mask is not None]
    weights = None
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = tf.cast(sample_weight, tf.float64)
    if not masks and weights is None:
        return samples, "samples"
    if not masks:
        return tf.reduce_sum(weights), "data"
    mask = masks[0] if len(masks) == 1 else masks[0] * masks[1]
    if weights is not None:
        mask, weights = _same_rank(mask, weights)
        mask = mask * weights
    return tf.reduce_sum(mask), "data"


def _same_rank(first: Any, second: Any) -> tuple[Any, Any]:
    """Two tensors of ranks that differ by a last dimension of one, as Keras aligns masks and weights."""
    if len(first.shape) == len(second.shape) + 1 and first.shape[-1] == 1:
        first = tf.squeeze(first, -1)
    elif len(second.shape) == len(first.shape) + 1 and second.shape[-1] == 1:
        second = tf.squeeze(second, -1)
    return first, second


def known_denominators(samples: int, measures: list[Measure]) -> Vector:
    """The denominators of a part, where the number of samples alone gives them."""
    return np.array([samples, *(samples if measure == "samples" else 0 for measure in measures)], float)


def share_vectors(denominators: list[Vector]) -> list[Vector]:
    """The shares of each part from what each is measured by; a sum counts fully in every part."""
    totals = np.sum(denominators, axis=0)
    is_sum = totals == 0
    return [np.where(is_sum, 1.0, part / np.where(is_sum, 1.0, totals)) for part in denominators]
