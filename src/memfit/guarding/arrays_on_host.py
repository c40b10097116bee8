"""Large arrays that a script hands to TensorFlow stay in host memory instead of the device's pool.

On a CPU data and training share one pool. TensorFlow would copy an array into it whole, and once more when a
pipeline begins, to optimise it; where that does not fit, the process dies. Here TensorFlow reads a copy that
lies outside the pool, element by element, and the pipeline is not optimised. Its elements are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.machine import first_device, limit_in_force
from memfit.private.tensorflow.datasets import as_it_is
from memfit.private.tensorflow.eager_tensors import EagerTensor, bytes_of
from memfit.private.tensorflow.runtime import hand_over

_SHARE = 32  # of the limit: smaller arrays are left alone


@functools.cache
def keep_large_arrays_on_host() -> None:
    """Have whatever makes a tensor of an array, and datasets of arrays and tensors, do so from now on.

    On a GPU, data has a memory of its own.
    """
    for name in ("from_tensor_slices", "from_tensors"):
        original = getattr(tf.data.Dataset, name)
        setattr(tf.data.Dataset, name, staticmethod(_reading_from_host(original)))
    hand_over(_on_host)


def _reading_from_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(tensors: Any, name: str | None = None) -> Any:
        dataset = original(tensors, name=name)
        shares = tf.executing_eagerly() and _shares_the_pool()
        return as_it_is(dataset) if shares and _holds_much(tensors) else dataset

    return make


def _on_host(value: Any, dtype: Any) -> Any:
    """A tensor of a large array outside the pool; None for everything else."""
    array = _as_array(value)
    if array is None or not _shares_the_pool():
        return None
    wanted = array.dtype if dtype is None else np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    if wanted != array.dtype and not (wanted.kind == array.dtype.kind == "f"):
        return None
    # Not before: this module is imported when Keras imports TensorFlow, and is only half there itself.
    from memfit.guarding.step.batches import aligned_copy, as_tensor

    return as_tensor(aligned_copy(array.astype(wanted, copy=False)))


def _as_array(value: Any) -> Any:
    """A large array of numbers, or that of a list of arrays; None for everything else."""
    if type(value) in (list, tuple) and value and type(value[0]) is np.ndarray:
        if not _is_much(len(value) * value[0].nbytes):
            return None
        first = value[0]
        alike = all(
            type(one) is np.ndarray and (one.shape, one.dtype) == (first.shape, first.dtype) for one in value
        )
        value = np.stack(value) if alike else None
    is_array = type(value) is np.ndarray and value.dtype.kind in "fiub"
    return value if is_array and _is_much(value.nbytes) else None


def _holds_much(tensors: Any) -> bool:
    """Whether TensorFlow would copy much when it rewrites a pipeline that reads from these."""
    leaves = tf.nest.flatten(tensors, expand_composites=True)
    arrays = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))
    return _is_much(arrays + sum(bytes_of(leaf) for leaf in leaves if isinstance(leaf, EagerTensor)))


def _shares_the_pool() -> bool:
    """Whether data and training share a pool with a limit."""
    return limit_in_force() is not None and "CPU" in first_device()


def _is_much(size_bytes: int) -> bool:
    return size_bytes * _SHARE >= (limit_in_force() or 0)


def reads_from_host(dataset: Any) -> bool:
    """Whether a pipeline reads its arrays where they are, as it is not rewritten."""
    options = dataset.options()
    return (
        options.experimental_optimization.apply_default_optimizations is False
        and options.autotune.enabled is False
    )
