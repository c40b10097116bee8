"""Arrays on the host that TensorFlow takes as they are, without a copy in the device's pool.

`tf.constant` and `tf.convert_to_tensor` copy a NumPy array into the pool, and where the pool is exhausted
that copy ends the process with a segmentation fault instead of an exception. DLPack hands over the array
itself; TensorFlow's kernels want it to begin at a multiple of 64 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64


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
