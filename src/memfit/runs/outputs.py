"""What a step returns for a batch, from what it returned for its parts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.runs.aligned import aligned_empty, as_tensor
from memfit.runs.shares import Kind


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
