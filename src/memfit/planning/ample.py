"""Whether memory is so ample that no plan is worth the seconds that it takes to make one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from memfit.private.keras.layers import functional_of, nodes_in_order

# Of the weights: themselves, gradients, two slots of an optimizer, old values, and a copy on the way.
_COPIES_OF_WEIGHTS = 6
# What layers return is only a part of what a step keeps: gradients and what layers do inside come on top.
_TIMES = 8


def is_ample(model: Any, batch_size: int, free_bytes: int) -> bool:
    """Whether so many bytes are plainly enough to train a model on batches of a size.

    It is told from the shapes that the layers of a model return; what has no such shapes is never plain.
    """
    functional = functional_of(model)
    if functional is None:
        return False
    sizes = list(_returned(functional))
    if any(size is None for size in sizes):
        return False
    weights = sum(_bytes(variable.shape, variable.dtype) for variable in model.variables)
    activations = batch_size * sum(size for size in sizes if size is not None)
    return _COPIES_OF_WEIGHTS * weights + _TIMES * activations <= free_bytes


def _returned(functional: Any) -> Iterator[int | None]:
    """The bytes for one sample of each tensor that a layer returns; None where a dimension is open."""
    for node in nodes_in_order(functional):
        nested = functional_of(node.operation)
        if nested is not None:
            yield from _returned(nested)
        for tensor in node.outputs:
            shape = tensor.shape[1:]
            yield None if None in shape else _bytes(shape, tensor.dtype)


def _bytes(shape: Any, dtype: Any) -> int:
    return int(math.prod(shape) * tf.as_dtype(keras.backend.standardize_dtype(dtype)).size)
