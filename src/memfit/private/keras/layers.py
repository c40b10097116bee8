"""Layers: the graph that they form, the layers inside one, and every call of one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from memfit.private.patching import overridden, replaced
from memfit.private.tensorflow.function_graphs import enclosed
from memfit.private.tensorflow.variables import backing_variable

_SOURCES = Path(keras.__file__).parent / "src"
_PREFIX = os.fspath(_SOURCES) + os.sep
_TRAINER = os.fspath(_SOURCES / "backend" / "tensorflow" / "trainer.py")


def functional_of(model: Any) -> Any:
    """The graph of layers behind a Functional or a built Sequential model; None for any other layer."""
    from keras.src.models.functional import Functional

    if isinstance(model, keras.Sequential):
        return model._functional if model.built else None
    return model if isinstance(model, Functional) else None


def nodes_in_order(functional: Any) -> list[Any]:
    """The calls of operations that make up a graph of layers, in the order in which Keras runs them."""
    by_depth = functional._nodes_by_depth
    known = {id(tensor) for tensor in functional.inputs}
    nodes = []
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            if node.operation and not node.is_input and all(id(t) in known for t in node.input_tensors):
                nodes.append(node)
                known.update(id(tensor) for tensor in node.outputs)
    return nodes


@contextmanager
def instead_of_running_through(functional: Any, run: Callable[..., Any]) -> Iterator[None]:
    """Let a graph of layers be run by `run(functional, inputs, operation_fn)`, on this instance only."""
    original = functional._run_through_graph

    def run_through(inputs: Any, operation_fn: Any = lambda operation: operation, call_fn: Any = None) -> Any:
        symbolic = any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(inputs))
        if symbolic or call_fn is not None:
            return original(inputs, operation_fn, call_fn)
        return run(inputs, operation_fn)

    with overridden(functional, "_run_through_graph", run_through):
        yield


def layers_and_self(layer: Any) -> list[Any]:
    """A layer first, then every layer inside it at any depth; empty for what is no layer."""
    return list(layer._flatten_layers(include_self=True)) if isinstance(layer, keras.Layer) else []


def all_layers(model: Any) -> list[Any]:
    """Every layer inside a model at any depth, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def layers_in(layer: Any) -> list[Any]:
    """The layers that a layer holds itself, without those inside them and without itself."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def mask_of(tensor: Any) -> Any:
    """The mask that a layer attached to its output, or None."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Any) -> Any:
    """A tensor with a mask attached, if there is one."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def owners_of_losses(layers: list[Any], losses: list[Any]) -> list[Any]:
    """The layer that added each loss inside a stateless scope."""
    return [next((layer for layer in layers if id(loss) in layer._loss_ids), layers[0]) for loss in losses]


class CallState:
    """The state of the calls around a layer: training or not, and the type to compute in."""

    _NAMES = ("current_call_ctx", "autocast_scope")

    def __init__(self) -> None:
        from keras.src.backend.common import global_state

        self._state = global_state
        self._values = [global_state.get_global_attribute(name) for name in self._NAMES]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let layers see it once more, outside the calls that it came from."""
        before = CallState()
        self._set()
        try:
            yield
        finally:
            before._set()

    def _set(self) -> None:
        for name, value in zip(self._NAMES, self._values, strict=True):
            self._state.set_global_attribute(name, value)


def built_shapes(model: Any) -> Any:
    """The shapes that a model was built with, where nothing else says them; None if it was not."""
    shapes = getattr(model, "_build_shapes_dict", None)
    return next(iter(shapes.values())) if shapes and len(shapes) == 1 else None


def tracker_of(owner: Any) -> Any:
    """The tracker of the variables and layers of a Keras object; None where there is none."""
    return vars(owner).get("_tracker")


@contextmanager
def each_layer_call(around: Callable[[Any, Callable[[], Any], Any], Any]) -> Iterator[None]:
    """Hand every call of a layer to `around(layer, call, inputs)`, which makes the call."""
    original = keras.layers.Layer.__call__

    def call(layer: Any, *arguments: Any, **options: Any) -> Any:
        return around(layer, lambda: original(layer, *arguments, **options), (arguments, options))

    with replaced(keras.layers.Layer, "__call__", call):
        yield


@contextmanager
def each_call(around: Callable[[Any, Callable[[], Any], Any], Any]) -> Iterator[None]:
    """The same for layers and for the operations between them in a graph of layers."""
    original = keras.Operation.__call__

    def call(operation: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(operation, keras.Layer):
            return original(operation, *arguments, **options)
        return around(operation, lambda: original(operation, *arguments, **options), (arguments, options))

    with each_layer_call(around), replaced(keras.Operation, "__call__", call):
        yield


def makers_of(tensors: Iterable[Any]) -> list[Any]:
    """The layers that symbolic tensors come from, past the operations in between."""
    found, pending, seen = [], list(tensors), set[int]()
    while pending:
        history = pending.pop()._keras_history
        if isinstance(history.operation, keras.Layer):
            found.append(history.operation)
        elif id(history.operation) not in seen:
            seen.add(id(history.operation))
            pending.extend(inputs_of(history.operation))
    return found


def inputs_of(operation: Any) -> list[Any]:
    """The symbolic tensors that an operation was called with, in all its calls."""
    return [tensor for node in operation._inbound_nodes for tensor in node.input_tensors]


def comes_from_keras(thing: Any) -> bool:
    """Whether a class or a function is Keras' own."""
    return str(getattr(thing, "__module__", "")).startswith("keras.src.")


def prepares_data(layer: Any) -> bool:
    """Whether a layer is one of Keras' for data before training: augmentation, scaling, looking up."""
    return any("keras.src.layers.preprocessing." in kind.__module__ for kind in type(layer).__mro__)


def is_cast_by_layers(variable: Any) -> bool:
    """Whether a variable is read in the type that its layer computes in."""
    return bool(variable._autocast)


@dataclass(frozen=True)
class CalledLayers:
    """Layers that were called, each with the ones around it: by scope, and by the variables they have."""

    by_scope: dict[str, str] = field(default_factory=dict)
    by_variable: dict[int, str] = field(default_factory=dict)  # identity of a tf.Variable


@contextmanager
def called_layers() -> Iterator[CalledLayers]:
    """Take note of all layers that are called from here on; a model that is not inside another is none."""
    called = CalledLayers()
    inside: list[str] = []

    def around(layer: Any, call: Callable[[], Any], _: Any) -> Any:
        is_outermost = not inside and isinstance(layer, keras.Model)
        inside.append("" if is_outermost else layer.name)
        name = "/".join(filter(None, inside))
        plain = layer.call

        @functools.wraps(plain)
        def noted(*arguments: Any, **options: Any) -> Any:
            called.by_scope[tf.compat.v1.get_default_graph().get_name_scope()] = name
            return plain(*arguments, **options)

        try:
            with overridden(layer, "call", noted):
                result = call()
        finally:
            inside.pop()
        if not is_outermost:
            for variable in layer.variables:  # those of layers inside it were noted before
                called.by_variable.setdefault(id(backing_variable(variable)), name)
        return result

    with each_layer_call(around):
        yield called


@contextmanager
def each_model(note: Callable[[Any], None]) -> Iterator[None]:
    """Hand every Keras model to `note` as soon as it exists."""
    original = vars(keras.Model)["__new__"]

    def new(kind: Any, *arguments: Any, **options: Any) -> Any:
        model = original.__func__(kind, *arguments, **options)
        note(model)
        return model

    with replaced(keras.Model, "__new__", staticmethod(new)):
        yield


def is_call_of_model(filename: str) -> bool:
    """Whether a frame is one of Keras' trainer's, with the model as `self`."""
    return filename == _TRAINER


def model_used_by(function: Any) -> Any:
    """The Keras model that a function has at hand, as `self`, in its closure or by a global name, or None."""
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None)
    at_hand = [owner, *vars(owner).values()] if hasattr(owner, "__dict__") else []
    if code is not None:
        at_hand += [enclosed(function, name) for name in code.co_freevars]
        names = getattr(function, "__globals__", {})
        at_hand += [names.get(name) for name in code.co_names]
    return next((one for one in at_hand if isinstance(one, keras.Model)), None)


def is_of_keras(filename: str) -> bool:
    """Whether a file is one of Keras' own, by where Keras is installed."""
    return filename.startswith(_PREFIX)
