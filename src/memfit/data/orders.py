"""In which order the elements of a data set come: another one each epoch, from any position on.

An order takes no memory, however large the data set is: each index is computed from its position with a
permutation that TensorFlow evaluates element by element. What tells one epoch from the next is a random
number that tf.data draws once for each iteration, so that the order survives `repeat`, `iter`, strategies
and the checkpoints of iterators.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf


class Order(NamedTuple):
    """Which elements there are, and in which order they come."""

    length: int
    shuffle: bool
    seed: int
    start: int  # elements that are left out, counted over epochs

    def blocks(self, size: int) -> Any:
        """A dataset of (marker, positions, indices): which epoch it is, and up to `size` elements.

        Only the first iteration begins at the start; later ones are whole epochs.
        """
        markers = _markers(self.seed)
        for _ in range(self.start // self.length):
            next(iter(markers))
        return markers.flat_map(
            lambda marker: tf.data.Dataset.range(self.first(marker), self.length, size).map(
                lambda begin: self._block(marker, begin, size)
            )
        )

    def first(self, marker: Any) -> Any:
        """The position at which an epoch begins."""
        epochs, offset = divmod(self.start, self.length)
        return tf.where(marker == _marker_after(epochs, self.seed), tf.constant(offset, tf.int64), 0)

    def _block(self, marker: Any, begin: Any, size: int) -> tuple[Any, Any, Any]:
        positions = tf.range(begin, tf.minimum(begin + size, self.length), dtype=tf.int64)
        return marker, positions, self.indices(marker, positions)

    def indices(self, marker: Any, positions: Any) -> Any:
        """Which elements are at these positions of an epoch."""
        if not self.shuffle or self.length == 1:
            return positions
        seed = tf.bitcast(marker, tf.int32)
        return tf.random.experimental.index_shuffle(positions, seed, self.length - 1)


def _markers(seed: int) -> Any:
    """One number in each iteration, another one each time; TensorFlow's global seed has no say in it."""
    first, second = (tf.constant(part, tf.int64) for part in (seed, 0x6D656D666974))
    generator, deleter = tf.raw_ops.AnonymousSeedGenerator(seed=first, seed2=second, reshuffle=True)
    spec = tf.TensorSpec((), tf.int64)
    variant = tf.raw_ops.RandomDatasetV2(
        seed=first,
        seed2=second,
        seed_generator=generator,
        rerandomize_each_iteration=True,
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
    )
    numbers = tf.data.experimental.from_variant(variant, spec)
    numbers.memfit_generator = deleter  # the generator lives as long as its dataset
    return numbers.take(1)


@functools.lru_cache(64)
def _marker_after(epochs: int, seed: int) -> int:
    """The marker of the epoch that comes after so many."""
    with tf.init_scope():
        markers = _markers(seed)
        found = [int(next(iter(markers))) for _ in range(epochs + 1)]
    return found[-1]
