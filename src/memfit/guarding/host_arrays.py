"""Arrays that are given to `fit`, `evaluate` or `predict` and stay on the host.

Keras would copy them whole onto the device. Instead its own adapter gets their indices, shuffles and
batches those, and the samples follow from them batch by batch.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from memfit.guarding.step.batches import Batch, HostArrays, Structure
from memfit.model.training_data import as_arrays, can_stay_on_host
from memfit.private.keras.losses_and_metrics import class_weights

_NAME = "memfit_indices_"


class Hosts:
    """Arrays by the name under which the pipeline carries their indices."""

    def __init__(self) -> None:
        self._arrays: dict[str, HostArrays] = {}

    def batch(self, element: Any) -> Batch | None:
        """The batch of samples whose indices came out of the pipeline; None when it was no indices."""
        x = element
        while isinstance(x, tuple | list) and x:
            x = x[0]
        if isinstance(x, dict) and len(x) == 1:
            ((name, indices),) = x.items()
            if name in self._arrays:
                return self._arrays[name].batch(indices.numpy())
        return None

    def take(self, method: str, arguments: dict[str, Any], *, validation: bool = True) -> dict[str, Any]:
        """The arguments of a call with arrays replaced by indices, wherever that makes no difference.

        `validation`: also those that are held out, which is wrong for a model that evaluates in its own way.
        """
        data: Structure = tuple(map(as_arrays, (arguments.get(name) for name in ("x", "y", "sample_weight"))))
        if can_stay_on_host(data) and _is_consistent(data):
            arguments, data = _with_class_weight(arguments, data)
            if data is not None and (validation or not arguments.get("validation_split")):
                arguments, data = _without_validation_part(arguments, data)
                arguments = {**arguments, "x": self._keep(method, data)}
                for name in ("y", "sample_weight"):
                    arguments.pop(name, None)
        held_out = arguments.get("validation_data")
        if validation and isinstance(held_out, tuple | list):
            unpacked = keras.utils.unpack_x_y_sample_weight(tuple(held_out))
            held = tuple(map(as_arrays, unpacked))
            if can_stay_on_host(held) and _is_consistent(held):
                arguments = {**arguments, "validation_data": (self._keep("validation", held),)}
        return arguments

    def _keep(self, method: str, data: Structure) -> dict[str, Any]:
        arrays = HostArrays(data)
        self._arrays[_NAME + method] = arrays
        return {_NAME + method: np.arange(arrays.count)}


def _is_consistent(data: Structure) -> bool:
    """Whether sample weights are in the form that Keras takes without a word; else it shall say it."""
    _, y, sample_weight = data
    if keras.tree.is_nested(y) and keras.tree.is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except ValueError:
            return False
    return not (
        keras.tree.is_nested(y) and sample_weight is not None and not keras.tree.is_nested(sample_weight)
    )


def _with_class_weight(arguments: dict[str, Any], data: Structure) -> tuple[dict[str, Any], Structure | None]:
    """Class weights as the sample weights that Keras makes of them."""
    class_weight = arguments.get("class_weight")
    if class_weight is None:
        return arguments, data
    x, y, sample_weight = data
    if sample_weight is not None or y is None or keras.tree.is_nested(y):
        return arguments, None  # Keras says what is wrong
    split = arguments.get("validation_split")
    weights = class_weights(y, class_weight)
    if split and arguments.get("validation_data") is None:
        # Keras splits first and weighs only what is trained on.
        at = math.floor(len(y) * (1 - split))
        held_out = tuple(None if part is None else _rows(part, slice(at, None)) for part in (x, y, None))
        kept = tuple(None if part is None else _rows(part, slice(None, at)) for part in (x, y, weights))
        return {
            **_without(arguments, "class_weight"), "validation_split": 0.0, "validation_data": held_out[:2]
        }, kept  # fmt: skip
    return _without(arguments, "class_weight"), (x, y, weights)


def _without(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != name}


def _rows(data: Structure, rows: slice) -> Structure:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], data)


def _without_validation_part(arguments: dict[str, Any], data: Structure) -> tuple[dict[str, Any], Structure]:
    """Take `validation_split` off the end of the arrays, as Keras does; views, no copies."""
    split = arguments.get("validation_split")
    if not split or arguments.get("validation_data") is not None:
        return arguments, data
    count = HostArrays(data).count
    at = math.floor(count * (1 - split))
    if not 0 < at < count:
        return arguments, data  # Keras says what is wrong
    head, tail = (_rows(data, rows) for rows in (slice(None, at), slice(at, None)))
    return {**arguments, "validation_split": 0.0, "validation_data": tail}, head
