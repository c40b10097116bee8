"""A batch that can be cut into parts, whether its samples are on the device or still on the host."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from memfit.core.errors import BatchSizesDiffer, CannotGuard
from memfit.guarding.step.loss_weights import Kind
from memfit.model.training_data import is_left_out

Array = np.ndarray[Any, Any]
Structure = Any  # (x, y, sample_weight), each an array, a nest of arrays, or None

_ALIGNMENT = 64  # bytes: TensorFlow takes such an array without a copy


class Batch(Protocol):
    """One batch of the user's, before it is split."""

    @property
    def size(self) -> int:
        """The number of samples in the batch."""
        ...

    @property
    def why_not_split(self) -> str | None:
        """The reason in the batch itself against cutting it into parts."""
        ...

    def part(self, start: int, stop: int) -> Structure:
        """The samples from `start` to `stop`, as Keras wants them."""
        ...


def parts(batch: Batch, micro_batch_size: int) -> Iterator[Structure]:
    """A batch cut into micro-batches, in order; each is made when it is asked for."""
    for start in range(0, batch.size, micro_batch_size):
        yield batch.part(start, min(start + micro_batch_size, batch.size))


def sizes(batch: Batch, micro_batch_size: int) -> list[int]:
    """The sizes of those micro-batches."""
    starts = range(0, batch.size, micro_batch_size)
    return [min(start + micro_batch_size, batch.size) - start for start in starts]


@dataclass(frozen=True)
class DeviceBatch:
    """A batch as the data pipeline delivered it."""

    data: Structure
    size: int

    @property
    def why_not_split(self) -> str | None:
        """The reason in the batch itself against cutting it into parts."""
        for leaf in keras.tree.flatten(self.data):
            if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor):
                return f"a batch holds a {type(leaf).__name__}"
        return None

    @classmethod
    def of(cls, element: Any) -> DeviceBatch:
        """A batch from one element of a dataset or generator."""
        element = keras.tree.map_structure(lambda leaf: None if is_left_out(leaf) else leaf, element)
        return cls.of_leaves(element)

    @classmethod
    def of_leaves(cls, data: Structure) -> DeviceBatch:
        """A batch of arrays and tensors in any structure."""
        data = keras.tree.map_structure(_with_shape, data)
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
        if not leaves or any(len(leaf.shape) == 0 for leaf in leaves):
            raise CannotGuard(
                "a batch holds a single number, not rows of samples" if leaves else "a batch holds nothing",
                suggestion="arrays whose first dimension is the batch",
            )
        counts = [_rows(leaf) for leaf in leaves]
        if len(set(counts)) > 1:
            raise BatchSizesDiffer(counts)
        return cls(data, counts[0])

    def part(self, start: int, stop: int) -> Structure:
        """The samples from `start` to `stop`; the whole batch is not copied."""
        if (start, stop) == (0, self.size):
            return self.data
        return keras.tree.map_structure(lambda leaf: _cut(leaf, start, stop), self.data)


def _with_shape(leaf: Any) -> Any:
    """Python numbers and lists as arrays, floats in Keras' own float type; everything else as it is."""
    if leaf is None or hasattr(leaf, "shape"):
        return leaf
    array = np.asarray(leaf)
    return array.astype(_keras_dtype(array))


def _rows(leaf: Any) -> int:
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return int(leaf.dense_shape[0]) if isinstance(leaf, tf.SparseTensor) else int(leaf.shape[0])


def _cut(leaf: Any, start: int, stop: int) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.Tensor):  # indexing one takes ten times as long
        first, count = _bounds(leaf.shape.rank, start, stop)
        return tf.raw_ops.Slice(input=leaf, begin=first, size=count)
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    sizes = tf.concat([[stop - start], leaf.dense_shape[1:]], axis=0)
    starts = tf.concat([[start], tf.zeros_like(leaf.dense_shape[1:])], axis=0)
    return tf.sparse.slice(leaf, tf.cast(starts, tf.int64), tf.cast(sizes, tf.int64))


@functools.lru_cache(maxsize=256)
def _bounds(rank: int, start: int, stop: int) -> tuple[Any, Any]:
    """The start and the size of a slice; -1 means all."""
    begin, size = np.zeros(rank, np.int64), np.full(rank, -1, np.int64)
    begin[0], size[0] = start, stop - start
    return as_tensor(begin), as_tensor(size)


@dataclass(frozen=True)
class HostArrays:
    """Arrays that stay on the host; only the samples of one micro-batch at a time leave it."""

    data: Structure

    @property
    def count(self) -> int:
        """The number of samples in the arrays."""
        return next(len(leaf) for leaf in keras.tree.flatten(self.data) if leaf is not None)

    def batch(self, indices: np.ndarray[Any, Any]) -> HostBatch:
        """The batch of the samples with these indices."""
        return HostBatch(self, indices)

    def gather(self, indices: np.ndarray[Any, Any]) -> Structure:
        """The samples with these indices, floats in Keras' own float type as Keras would convert them."""
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else aligned_take(leaf, indices, _keras_dtype(leaf)), self.data
        )


@dataclass(frozen=True)
class HostBatch:
    """A batch of samples that are still on the host."""

    arrays: HostArrays
    indices: np.ndarray[Any, Any]
    why_not_split = None

    @property
    def size(self) -> int:
        """The number of samples in the batch."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> Structure:
        """The samples from `start` to `stop`, gathered now, packed as Keras packs them."""
        return keras.utils.pack_x_y_sample_weight(*self.arrays.gather(self.indices[start:stop]))


def _keras_dtype(array: np.ndarray[Any, Any]) -> Any:
    return keras.config.floatx() if np.issubdtype(array.dtype, np.floating) else array.dtype


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array whose first byte is where TensorFlow wants it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = np.empty(size + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    array: Array = block[start : start + size].view(dtype).reshape(shape)
    return array


def aligned_copy(array: Array) -> Array:
    """A copy of an array, aligned."""
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return copy


def aligned_take(array: Array, indices: Array, dtype: Any) -> Array:
    """The rows with these indices as `dtype`, aligned; one copy where the type stays."""
    rows = aligned_empty((len(indices), *array.shape[1:]), dtype)
    if array.dtype == rows.dtype:
        # "clip" writes straight into the rows; indices are never out of range here.
        np.take(array, indices, axis=0, out=rows, mode="clip")
    else:
        np.copyto(rows, array[indices], casting="same_kind")
    return rows


def nudged_by_a_bit(data: Structure) -> Structure:
    """The data of a batch with the last bit of each number of its inputs moved, up or down."""
    random = np.random.default_rng(0)
    x, *others = data if isinstance(data, tuple) else (data,)
    x = keras.tree.map_structure(lambda leaf: _nudged(leaf, random), x)
    return (x, *others) if isinstance(data, tuple) else x


def _nudged(leaf: Any, random: np.random.Generator) -> Any:
    array = np.asarray(leaf) if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else None
    if array is None or array.dtype.kind != "f":
        return leaf
    signs = random.choice(np.array([-1, 1], array.dtype), array.shape)
    return array + array * signs * np.finfo(array.dtype).eps


def as_tensor(value: Any) -> Any:
    """A tensor that uses the memory of an array; what is no array is converted as usual.

    The array must not be changed as long as the tensor lives.
    """
    if isinstance(value, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OSU":
        return tf.convert_to_tensor(value)
    if value.ctypes.data % _ALIGNMENT or not value.flags.c_contiguous or not value.flags.writeable:
        value = aligned_copy(value)
    try:
        return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
    except BufferError:  # bfloat16 and other types that NumPy does not hand over
        return tf.convert_to_tensor(value)


def join_outputs(parts: list[Any], shares: list[float], kinds: list[Kind]) -> Any:
    """The outputs for the whole batch."""
    leaves = [keras.tree.flatten(part) for part in parts]
    joined = [
        _join(values, shares, kind) for values, kind in zip(zip(*leaves, strict=True), kinds, strict=True)
    ]
    return keras.tree.pack_sequence_as(parts[-1], joined)


def _join(values: tuple[Any, ...], shares: list[float], kind: Kind) -> Any:
    if kind == "rows":
        return join_rows(list(values))
    if kind in ("last", "neither") or not tf.is_tensor(values[-1]):
        return values[-1]
    numbers = [np.asarray(value) for value in values]
    factors = shares if kind == "mean" else [1.0] * len(shares)
    total = sum(number * np.float64(factor) for number, factor in zip(numbers, factors, strict=True))
    return as_tensor(np.array(total, numbers[-1].dtype))


def join_rows(values: list[Any]) -> Any:
    """Rows one below the other, in host memory."""
    if values[0].dtype == tf.string:
        return tf.concat(values, axis=0)
    arrays = [np.asarray(value) for value in values]
    rows = aligned_empty((sum(len(array) for array in arrays), *arrays[0].shape[1:]), arrays[0].dtype)
    np.concatenate(arrays, out=rows)
    return as_tensor(rows)


def on_host(outputs: Any) -> Any:
    """The same outputs in host memory, so that they take none of the device's."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.dtype == tf.string:
            return leaf
        array = np.asarray(leaf)
        copy = aligned_empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return as_tensor(copy)

    return keras.tree.map_structure(move, outputs)
