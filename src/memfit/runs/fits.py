"""`model.fit` through the guard, with arrays left on the host."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from memfit.records import Budget
from memfit.runs.batches import HostArrays, Structure, can_stay_on_host
from memfit.runs.guards import Guard

# Under these names the pipeline carries indices into host arrays instead of samples.
_TRAINING = "memfit_training_indices"
_VALIDATION = "memfit_validation_indices"


def fit_guarded(
    model: Any,
    x: Any,
    y: Any,
    *,
    budget: Budget,
    micro_batch_size: int | None,
    arguments: dict[str, Any],
) -> Any:
    """Keras' own `fit` with the guard attached; its History gets `.run`."""
    guard = Guard(model, budget=budget, micro_batch_size=micro_batch_size)
    data = (x, y, arguments.get("sample_weight"))
    if can_stay_on_host(data) and arguments.get("class_weight") is None:
        arguments, data = _without_validation_part(arguments, data)
        x, y = _on_host(guard, _TRAINING, HostArrays(data)), None
        arguments = {**arguments, "sample_weight": None}
    validation = arguments.get("validation_data")
    if guard.evaluates and isinstance(validation, tuple | list) and can_stay_on_host(tuple(validation)):
        arrays = HostArrays(keras.utils.unpack_x_y_sample_weight(tuple(validation)))
        arguments = {**arguments, "validation_data": (_on_host(guard, _VALIDATION, arrays),)}
    with guard.attached():
        history = model.fit(x, y, **arguments)
    history.run = guard.run()
    return history


def _on_host(guard: Guard, name: str, arrays: HostArrays) -> dict[str, Any]:
    """Leave arrays with the guard; Keras' own adapter puts their indices in the order of the samples."""
    guard.hosts[name] = arrays
    return {name: np.arange(arrays.count)}


def _without_validation_part(arguments: dict[str, Any], data: Structure) -> tuple[dict[str, Any], Structure]:
    """Take `validation_split` off the end of the arrays, as Keras does; views, no copies."""
    split = arguments.get("validation_split")
    if not split or arguments.get("validation_data") is not None:
        return arguments, data
    count = HostArrays(data).count
    at = math.floor(count * (1 - split))
    if not 0 < at < count:
        return arguments, data  # Keras says what is wrong
    head, tail = (
        keras.tree.map_structure(lambda leaf, part=part: None if leaf is None else leaf[part], data)
        for part in (slice(None, at), slice(at, None))
    )
    return {**arguments, "validation_split": 0.0, "validation_data": tail}, head
