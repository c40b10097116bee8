"""In which order the elements of a data set come: another one each epoch, from any position on.

An order takes no memory, however large the data set is: each index is computed from its position with a
permutation that TensorFlow evaluates element by element. What tells one epoch from the next is a random
number that tf.data draws once for each iteration, so that the order survives `repeat`, `iter`, strategies
and the checkpoints of iterators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# TensorFlow rewrites Python code in functions of datasets; ours needs none of it, and it takes a while.
as_written = tf.autograph.experimental.do_not_convert

_ROUNDS = 8
_COMPUTED = 4096
_SALT = 0x6D656D66
Permutation = Callable[[Any], Any]  # positions of an epoch -> indices of elements


class Groups(NamedTuple):
    """Elements that lie together, as in the chunks of a file, where whole groups are read at once."""

    sizes: npt.NDArray[np.int64]  # elements of each group, in the order in which they lie
    window: int  # groups whose elements are mixed


class Order(NamedTuple):
    """Which elements there are, and in which order they come.

    With groups, a shuffled order goes through them in windows: groups come in a random order, and so do the
    elements of every few groups that follow each other. Whoever reads needs no more groups at a time.
    """

    length: int
    shuffle: bool
    seed: int
    start: int  # elements that are left out, counted over epochs
    groups: Groups | None = None

    def blocks(self, size: int) -> Any:
        """A dataset of (markers, positions, indices): which epoch it is, and up to `size` elements.

        Only the first iteration begins at the start; later ones are whole epochs.
        """
        markers = _markers(self.seed)
        for _ in range(self.start // self.length):
            next(iter(markers))
        # Many blocks are computed at once, and cut then: TensorFlow takes its time to call a function.
        many = size * max(1, _COMPUTED // size)
        return markers.flat_map(as_written(lambda marker: self._epoch(marker, many))).rebatch(size)

    def first(self, marker: Any) -> Any:
        """The position at which an epoch begins."""
        epochs, offset = divmod(self.start, self.length)
        return tf.where(marker == _marker_after(epochs, self.seed), tf.constant(offset, tf.int64), 0)

    def _epoch(self, marker: Any, size: int) -> Any:
        permutation = self._permutation(marker)

        def block(begin: Any) -> tuple[Any, Any, Any]:
            positions = tf.range(begin, tf.minimum(begin + size, self.length), dtype=tf.int64)
            return tf.fill(tf.shape(positions), marker), positions, permutation(positions)

        return tf.data.Dataset.range(self.first(marker), self.length, size).map(as_written(block))

    def indices(self, marker: Any, positions: Any) -> Any:
        """Which elements are at these positions of an epoch."""
        return self._permutation(marker)(positions)

    def _permutation(self, marker: Any) -> Permutation:
        """The order of an epoch; what all its blocks need is computed here, once."""
        if not self.shuffle or self.length == 1:
            return lambda positions: positions
        seed = _seed(marker)
        if self.groups is not None:
            return _by_groups(self.groups, seed)
        return lambda positions: _permuted(positions, seed, self.length - 1)


def _seed(marker: Any) -> Any:
    """Three numbers with all their bits mixed: with small ones, elements would prefer some places."""
    return tf.random.stateless_uniform(
        (3,), tf.bitcast(marker, tf.int32), minval=None, maxval=None, dtype=tf.int32
    )


def _permuted(positions: Any, seed: Any, last: Any) -> Any:
    # The function that TensorFlow has for it pads seeds to three numbers with zeros.
    return tf.raw_ops.RandomIndexShuffle(
        index=positions, seed=seed, max_index=tf.cast(last, tf.int64), rounds=_ROUNDS
    )


def _by_groups(groups: Groups, seed: Any) -> Permutation:
    """Groups in a random order, and elements in a random order within each window of groups."""
    count, lying = len(groups.sizes), tf.constant(groups.sizes, tf.int64)
    order = tf.range(count, dtype=tf.int64)
    if count > 1:
        order = _permuted(order, seed, count - 1)
    ends = tf.cumsum(tf.gather(lying, order))
    begins = ends - tf.gather(lying, order)
    offsets = tf.gather(tf.cumsum(lying, exclusive=True), order) - begins

    def permutation(positions: Any) -> Any:
        window = tf.searchsorted(ends, positions, side="right", out_type=tf.int64) // groups.window
        begin = tf.gather(begins, window * groups.window)
        end = tf.gather(ends, tf.minimum((window + 1) * groups.window, count) - 1)
        mixed = begin + _shuffled(positions - begin, end - begin, window, seed)
        return mixed + tf.gather(offsets, tf.searchsorted(ends, mixed, side="right"))

    return permutation


def _shuffled(positions: Any, sizes: Any, windows: Any, seed: Any) -> Any:
    """Positions in windows -> other ones in the same windows, in an order of each window's own."""
    seeds = seed[None] + tf.cast(windows, tf.int32)[:, None] * tf.constant([[_SALT, 0, 1]])
    return _permuted(positions, seeds, sizes - 1)


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
