"""Gradients added up over micro-batches.

Dense gradients go into one private variable each. Sparse ones (of embeddings) are kept as the slices that
they are: a dense copy could be as large as the table, and optimizers treat slices differently.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.runs.keras_internals import backing_variable

Slices = dict[str, tuple[Any, Any]]  # place of the variable -> (indices, values)


class Accumulators:
    """One place for each trainable variable; what never gets a gradient takes no memory."""

    def __init__(self, trainable: list[Any]) -> None:
        self.trainable = trainable
        self._places = {id(variable): place for place, variable in enumerate(trainable)}
        self._dense: dict[int, Any] = {}
        self._slices: dict[str, list[tuple[Any, Any]]] = {}
        self._reached: set[int] = set()

    @property
    def count(self) -> int:
        """How many dense accumulators there are; a graph that zeroes them is stale when this changes."""
        return len(self._dense)

    def forget(self, *, eager: bool = False) -> None:
        """Begin again from nothing; what a graph gives a gradient to is known from its trace."""
        self._slices.clear()
        if eager:
            self._reached.clear()

    def zero(self) -> None:
        """Set the dense accumulators to zero, eagerly or while tracing."""
        for accumulator in self._dense.values():
            accumulator.assign(tf.zeros_like(accumulator))

    def add(self, gradients: list[Any], variables: list[Any]) -> Slices:
        """Add gradients, eagerly or while tracing; sparse ones are returned, to be given to `keep`."""
        slices: Slices = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            place = self._places[id(variable)]
            if isinstance(gradient, tf.IndexedSlices):
                slices[str(place)] = (gradient.indices, gradient.values)
            elif gradient is not None:
                self._reached.add(place)
                self._accumulator(place).assign_add(gradient)
        return slices

    def _accumulator(self, place: int) -> Any:
        """The variable for a dense gradient, created when the first one is seen."""
        if place not in self._dense:
            shape, dtype = self.trainable[place].shape, backing_variable(self.trainable[place]).dtype
            with tf.init_scope():
                self._dense[place] = tf.Variable(tf.zeros(shape, dtype), trainable=False)
        return self._dense[place]

    def keep(self, slices: Slices) -> None:
        """Take the sparse gradients of one micro-batch."""
        for place, pair in slices.items():
            self._slices.setdefault(place, []).append(pair)

    def joined_slices(self) -> Slices:
        """The sparse gradients of all micro-batches, as one set of slices for each variable."""
        return {
            place: pairs[0] if len(pairs) == 1 else (_join(pairs, 0), _join(pairs, 1))
            for place, pairs in self._slices.items()
        }

    def gradients(self, slices: Slices) -> list[Any]:
        """The gradient of each variable, as the optimizer takes it; None where there is none."""
        return [self._gradient(place, slices.get(str(place))) for place in range(len(self.trainable))]

    def _gradient(self, place: int, slices: tuple[Any, Any] | None) -> Any:
        if slices is not None:
            indices, values = slices
            return tf.IndexedSlices(values, indices, tf.constant(self.trainable[place].shape.as_list()))
        return self._dense[place].read_value() if place in self._reached else None


def _join(pairs: list[tuple[Any, Any]], part: int) -> Any:
    return tf.concat([pair[part] for pair in pairs], axis=0)
