"""The layers of a model, and which of them have to compute in float32."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

import keras

from memfit.core.errors import LayerNotFound
from memfit.private.keras.layers import (
    comes_from_keras,
    functional_of,
    inputs_of,
    is_cast_by_layers,
    layers_and_self,
    layers_in,
    makers_of,
    prepares_data,
)

FULL = "float32"
WRITES = "writes its variables"  # which it would read and round in 16 bits

_SOFTMAXES = (keras.activations.softmax, keras.activations.log_softmax, keras.activations.sparsemax)
_KINDS = (
    keras.layers.BatchNormalization,
    keras.layers.SpectralNormalization,
    keras.layers.UnitNormalization,
)
# They run their layers' code themselves, or hand on states: what is inside computes in the same type.
_TOGETHER = (keras.layers.Wrapper, keras.layers.RNN, keras.layers.StackedRNNCells)
# Not all of their kernels know 16 bits on every device.
_MAY_FAIL = (keras.layers.MaxPooling3D, keras.layers.UpSampling2D, keras.layers.TFSMLayer)


class Layers:
    """A model and the layers inside it, with their names: `inner/dense_1` is inside the layer `inner`."""

    def __init__(self, model: Any) -> None:
        self.all = layers_and_self(model)
        self.names = {id(model): str(model.name)}
        self._holders: dict[int, list[Any]] = {}
        self._note_names(model, "")

    def _note_names(self, holder: Any, prefix: str) -> None:
        for layer in layers_in(holder):
            self._holders.setdefault(id(layer), []).append(holder)
            if id(layer) not in self.names:
                self.names[id(layer)] = prefix + str(layer.name)
                self._note_names(layer, f"{self.names[id(layer)]}/")

    @property
    def changeable(self) -> list[Any]:
        """Those that compute in float32 because no other type was chosen."""
        return [layer for layer in self.all if _is_plain(layer)]

    @property
    def have_own_code(self) -> bool:
        """Whether any of them may hold on to float32: it runs the user's code, or lacks kernels."""
        return any(map(_has_own_code, self.all))

    def named(self, name: str) -> list[Any]:
        """The layers of a name, with or without the names of those around them."""
        found = [layer for layer in self.all if f"/{self.names[id(layer)]}".endswith(f"/{name}")]
        if not found:
            known = {part for path in self.names.values() for part in (path, path.rpartition("/")[2])}
            raise LayerNotFound(name, near=get_close_matches(name, sorted(known)), known=len(self.all))
        return found

    def unit(self, layer: Any) -> list[Any]:
        """A layer, what is inside it, and what has to compute in the same type as it does."""
        holders = [holder for holder in self._holders.get(id(layer), []) if isinstance(holder, _TOGETHER)]
        units = [self.unit(holder) for holder in holders] or [layers_and_self(layer)]
        return list({id(member): member for unit in units for member in unit}.values())

    def alike(self, layer: Any) -> list[Any]:
        """A layer, and if its code is the user's those with the same; empty for an operation."""
        if not isinstance(layer, keras.Layer) or comes_from_keras(type(layer)):
            return [layer] if isinstance(layer, keras.Layer) else []
        return [other for other in self.all if type(other) is type(layer)]

    def is_one(self, layer: Any) -> bool:
        """Whether a layer can compute only as a whole in one type or another."""
        return isinstance(layer, _TOGETHER) or not layers_in(layer)


def reasons_to_keep(
    layers: list[Any], makers: list[Any], written: Collection[int]
) -> Iterator[tuple[Any, str]]:
    """Layers that compute in float32 whatever the numbers are, with the reason of each.

    `makers` are layers that outputs come from, `written` the identities of variables that a step assigns to.
    """
    for layer in makers:
        if not isinstance(layer, keras.Model):  # whose own code decides what makes its outputs
            yield layer, "makes an output of the model"
    for layer in layers:
        if reason := _reason_of_kind(layer):
            yield layer, reason
        elif _has_own_code(layer) and any(id(variable) in written for variable in own_variables(layer)):
            yield layer, WRITES


def _reason_of_kind(layer: Any) -> str | None:
    if prepares_data(layer):
        return "prepares data"
    if layer.activity_regularizer is not None:
        return "adds a loss"
    attention = isinstance(layer, keras.layers.Softmax | keras.layers.Attention)
    if attention or any(function in _SOFTMAXES for function in _functions_of(layer)):
        return "softmax"
    return next((kind.__name__ for kind in _KINDS if isinstance(layer, kind)), None)


def own_variables(layer: Any) -> list[Any]:
    """The variables of a layer, not of those inside it, that it reads in the type it computes in."""
    inside = {id(variable) for inner in layers_in(layer) for variable in inner.variables}
    own = [variable for variable in layer.variables if id(variable) not in inside]
    return [v for v in own if keras.backend.is_float_dtype(v.dtype) and is_cast_by_layers(v)]


def makers_of_outputs(layer: Any) -> list[Any]:
    """The layers that make the outputs of a graph of layers; any other layer makes its own."""
    functional = functional_of(layer)
    makers = [] if functional is None else makers_of(functional.outputs)
    return [layer] if functional is None else [one for maker in makers for one in makers_of_outputs(maker)]


def layers_behind(operation: Any) -> list[Any]:
    """A layer itself; for an operation between layers, those that make what it takes; empty for None."""
    if operation is None or isinstance(operation, keras.Layer):
        return [] if operation is None else [operation]
    makers = makers_of(inputs_of(operation))
    return [one for maker in makers for one in makers_of_outputs(maker)]


def _has_own_code(layer: Any) -> bool:
    parts = [type(layer).call, *_functions_of(layer)]
    return not all(map(comes_from_keras, parts)) or isinstance(layer, _MAY_FAIL)


def _functions_of(layer: Any) -> Iterator[Any]:
    return (value for value in vars(layer).values() if inspect.isfunction(value))


def _is_plain(layer: Any) -> bool:
    policy = layer.dtype_policy
    chosen = type(policy) not in (keras.dtype_policies.DTypePolicy, keras.dtype_policies.FloatDTypePolicy)
    return not chosen and policy.name == FULL and not isinstance(layer, keras.layers.InputLayer)
