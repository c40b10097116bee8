"""Every private name of Keras and TensorFlow that running a model call by call relies on.

`tests/facts/test_model_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf


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


def all_layers(layer: Any) -> list[Any]:
    """A layer and every layer inside it."""
    return list(layer._flatten_layers(include_self=True)) if isinstance(layer, keras.Layer) else []


def backing_variable(variable: Any) -> Any:
    """The tf.Variable behind a Keras variable, whatever scope is open; a tf.Variable is its own."""
    return variable if isinstance(variable, tf.Variable) else variable._value


def scope_in_force() -> Any:
    """The stateless scope that is open, or None."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("stateless_scope")


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
    """What a layer sees of the calls around it: training or not, and the type to compute in."""

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


@contextmanager
def global_seed_outside_scopes() -> Iterator[None]:
    """Let the generator behind `keras.random` without a seed be created, although a scope is open."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    original = seed_generator.global_seed_generator

    def generator() -> Any:
        scope = scope_in_force()
        with ExitStack() as stack:
            if global_state.get_global_attribute("global_seed_generator") is None:
                global_state.set_global_attribute("stateless_scope", None)
                stack.callback(global_state.set_global_attribute, "stateless_scope", scope)
                stack.enter_context(tf.init_scope())
            return original()

    with replaced(seed_generator, "global_seed_generator", generator):
        yield


@contextmanager
def borrowed_global_seed() -> Iterator[None]:
    """Let `keras.random` without a seed work in a trace that is thrown away; no generator stays behind."""
    from keras.src.backend.common import global_state

    name = "global_seed_generator"
    if global_state.get_global_attribute(name) is not None:
        yield
        return
    global_state.set_global_attribute(name, keras.random.SeedGenerator(0))
    try:
        yield
    finally:
        global_state.set_global_attribute(name, None)


def unrecorded() -> Any:
    """A context in which no tape takes note of anything; variables that are read are still noticed."""
    from tensorflow.python.eager import record

    return record.stop_recording()


def is_recorded() -> bool:
    """Whether a tape of this thread may take note of what is computed now."""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())


def is_compiled_by_xla() -> bool:
    """Whether what is being traced is for XLA."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def built_shapes(model: Any) -> Any:
    """The shapes that a model was built with, where nothing else says them; None if it was not."""
    shapes = getattr(model, "_build_shapes_dict", None)
    return next(iter(shapes.values())) if shapes and len(shapes) == 1 else None


def optimizer_variables(model: Any) -> list[Any]:
    """The variables of a compiled model's optimizer, as far as there are any yet."""
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else list(optimizer.variables)


def build_everything(model: Any, batch: Any) -> None:
    """Create all variables of model, loss, metrics and optimizer from the shapes of a batch.

    The batch dimension stays open: a model that is built now must take batches of every size later.
    """

    def symbolic(leaf: Any) -> Any:
        if leaf is None:
            return None
        sparse = isinstance(leaf, tf.SparseTensor)
        return keras.KerasTensor((None, *leaf.shape[1:]), leaf.dtype, sparse=sparse)

    model._symbolic_build(data_batch=keras.tree.map_structure(symbolic, batch))


def batch_size_of(dataset: Any) -> int | None:
    """The size of the batches that a dataset makes, but for the last; None where it does not say."""
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        inputs = dataset._inputs()
        dataset = inputs[0] if len(inputs) == 1 else None
    return None


def compiled_parts(model: Any) -> tuple[Any, ...]:
    """What `compile` replaces: optimizer, losses and metrics, and what it was given."""
    names = ("optimizer", "_compile_loss", "_compile_metrics", "compiled")
    return tuple(getattr(model, name, None) for name in names)


def with_inner(optimizer: Any) -> list[Any]:
    """An optimizer and the one inside it, if there is one; empty without an optimizer."""
    return [one for one in (optimizer, getattr(optimizer, "inner_optimizer", None)) if one is not None]


def tracker_of(owner: Any) -> Any:
    """What notes which variables and layers an object of Keras has; None where there is none."""
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


def layers_in(layer: Any) -> list[Any]:
    """The layers that a layer holds itself, not those inside them."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


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


def compiled_with(model: Any) -> Any:
    """The optimizer that `compile` was given, or made from a name; None if it was not called."""
    settings = vars(model).get("_compile_config")
    return None if settings is None else settings.config["optimizer"]


def put_optimizer(model: Any, optimizer: Any) -> None:
    """Give a compiled model another optimizer; losses, metrics and weights stay the same objects."""
    from keras.src.utils import tracking

    with tracking.DotNotTrackScope():
        model.optimizer = optimizer
    settings = vars(model).get("_compile_config")  # which a saved model is compiled with when it is loaded
    if settings is not None:
        settings.config["optimizer"] = optimizer


def loss_in_training(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The loss that a model trains on, with what its layers add, by its own `compute_loss`."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)


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
def overridden(owner: Any, name: str, function: Any) -> Iterator[None]:
    """Replace a method on one instance for a while, past Keras' attribute tracking."""
    attributes = vars(owner)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = function
    try:
        yield
    finally:
        if before is missing:
            del attributes[name]
        else:
            attributes[name] = before


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a class or module for a while."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
