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

_SHARE = 32  # of the limit: smaller arrays are left alone


def keep_large_arrays_on_host() -> None:
    """Have `from_tensor_slices`, `from_tensors` and `tf.constant` do so from now on."""
    if limit_in_force() is None or "CPU" not in first_device():
        return  # data has a memory of its own
    for name in ("from_tensor_slices", "from_tensors"):
        original = getattr(tf.data.Dataset, name)
        setattr(tf.data.Dataset, name, staticmethod(_reading_from_host(original)))
    tf.constant = _made_on_host(tf.constant)


def _reading_from_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(tensors: Any, name: str | None = None) -> Any:
        kept = _on_host(tensors)
        dataset = original(kept, name=name)
        return dataset if kept is tensors else dataset.with_options(_as_it_is())

    return make


def _made_on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const") -> Any:
        if shape is None and _is_large(value) and dtype in (None, tf.as_dtype(value.dtype)):
            value = _on_host(value)
        return original(value, dtype=dtype, shape=shape, name=name)

    return constant


def _on_host(tensors: Any) -> Any:
    """The same with each large array as a tensor outside the pool; the very same where there is none."""
    if not tf.executing_eagerly():
        return tensors
    if type(tensors) is dict:
        kept = {key: _on_host(value) for key, value in tensors.items()}
        return kept if any(kept[key] is not value for key, value in tensors.items()) else tensors
    if type(tensors) is tuple:
        values = tuple(map(_on_host, tensors))
        return values if any(a is not b for a, b in zip(values, tensors, strict=True)) else tensors
    if not _is_large(tensors):
        return tensors
    # Not before: this module is imported when Keras imports TensorFlow, and is only half there itself.
    from memfit.guarding.step.batches import aligned_copy, as_tensor

    return as_tensor(aligned_copy(tensors))


def _is_large(leaf: Any) -> bool:
    is_array = type(leaf) is np.ndarray and leaf.dtype.kind in "fiub"
    return is_array and leaf.nbytes * _SHARE >= (limit_in_force() or 0)


def reads_from_host(dataset: Any) -> bool:
    """Whether a pipeline reads its arrays where they are, as it is not rewritten."""
    options = dataset.options()
    return (
        options.experimental_optimization.apply_default_optimizations is False
        and options.autotune.enabled is False
    )


def _as_it_is() -> Any:
    """Options for a pipeline that TensorFlow does not rewrite: that would copy what it reads from."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return options
