"""Arrays on the host that TensorFlow takes as they are.

TensorFlow uses a NumPy array in place when its address is a multiple of 64, and copies it into the
device's pool otherwise. On a CPU such a copy costs memory twice, and where the pool is exhausted it ends
the process with a segmentation fault instead of an exception.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
    copy = aligned_empty(array.shape, array.dtype)
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
