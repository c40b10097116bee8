"""The batches that a call of `fit` is going to take."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from memfit.models import internals
from memfit.runs.hosts import as_arrays, takes_batch_size

_BATCH_SIZE = 32  # that of Keras


def batches_of(arguments: dict[str, Any], samples: int = 1) -> tuple[int | None, Any]:
    """Their size, None where it is not known beforehand; and a batch of so many samples, or the dataset."""
    x = arguments["x"]
    if takes_batch_size(x):
        parts = (x, arguments.get("y"), arguments.get("sample_weight"))
        kept = tuple(as_arrays(part) for part in parts if part is not None)
        count, size = len(keras.tree.flatten(kept)[0]), arguments.get("batch_size")
        size = _BATCH_SIZE if size is None else size
        known = isinstance(size, int) and size > 0  # else Keras says what is wrong
        return min(size, count) if known else None, _first(kept, samples)
    if isinstance(x, tf.data.Dataset):
        sizes = {spec.shape[0] for spec in keras.tree.flatten(x.element_spec) if spec.shape.rank}
        size = sizes.pop() if len(sizes) == 1 else None
        return (size or internals.batch_size_of(x), x) if not sizes else (None, None)
    return None, None


def samples_of(arguments: dict[str, Any], count: int) -> Any:
    """The first samples that `fit` is going to take; None where they cannot be had without taking them."""
    return batches_of(arguments, count)[1] if takes_batch_size(arguments["x"]) else None


def _first(batch: Any, count: int) -> Any:
    return keras.tree.map_structure(lambda array: array[:count], batch)
