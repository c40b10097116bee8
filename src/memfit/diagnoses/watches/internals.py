"""Every private name of TensorFlow and Keras that watching and releasing rely on, each behind a function.

`tests/facts/test_watch_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import constant_op, ops, tensor_util
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import script_ops
from tensorflow.python.util import tf_stack

from memfit.models.internals import overridden, replaced

EagerTensor = ops.EagerTensor
_CUSTOM_GRADIENT = "CustomGradient-"
_OF_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_DATASETS_OF_ARRAYS = ("from_tensor_slices_op.py", "from_tensors_op.py")
_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
_HELD = "_memfit_held"


def stack() -> Any:
    """The calls that are under way, outermost first, with the user's lines in place of AutoGraph's."""
    return tf_stack.extract_stack()


@contextmanager
def each_graph(note: Callable[[Any], None]) -> Iterator[None]:
    """Hand every FuncGraph to `note` as soon as it exists."""
    original = FuncGraph.__init__

    def initialise(graph: Any, *arguments: Any, **options: Any) -> None:
        original(graph, *arguments, **options)
        note(graph)

    with replaced(FuncGraph, "__init__", initialise):
        yield


@contextmanager
def each_closure(note: Callable[[Any], None]) -> Iterator[None]:
    """Hand every Python function that TensorFlow registers to `note`."""
    original = script_ops._py_funcs.insert

    def insert(function: Any) -> Any:
        note(function)
        return original(function)

    with overridden(script_ops._py_funcs, "insert", insert):
        yield


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


@contextmanager
def each_array(least_bytes: int, around: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Hand every array of at least so many bytes that becomes a tensor to `around(array, call)`."""
    to_tensor, to_graph = constant_op.convert_to_eager_tensor, tensor_util.make_tensor_proto

    def convert(value: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(value, "nbytes", 0) < least_bytes:
            return to_tensor(value, *arguments, **options)
        return around(value, lambda: to_tensor(value, *arguments, **options))

    def make(value: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(value, "nbytes", 0) < least_bytes:
            return to_graph(value, *arguments, **options)
        return around(value, lambda: to_graph(value, *arguments, **options))

    with (
        replaced(constant_op, "convert_to_eager_tensor", convert),
        replaced(tensor_util, "make_tensor_proto", make),
    ):
        yield


def is_call_of_function(filename: str, name: str) -> bool:
    """Whether a frame is that of a tf.function being called, which is `self` there."""
    return name == "_call" and filename.endswith("polymorphic_function.py")


def is_tracing(filename: str, name: str) -> bool:
    """Whether a frame is that of a tf.function being traced for new arguments."""
    return name == "_maybe_define_function" and filename.endswith("tracing_compilation.py")


def is_call_of_model(filename: str) -> bool:
    """Whether a frame is one of Keras' trainer's, with the model as `self`."""
    return filename.replace("\\", "/").endswith("keras/src/backend/tensorflow/trainer.py")


def model_used_by(function: Any) -> Any:
    """The Keras model that a function has at hand, as `self`, in its closure or by a global name, or None."""
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None)
    at_hand = [owner, *vars(owner).values()] if hasattr(owner, "__dict__") else []
    if code is not None:
        at_hand += [_enclosed(function, name) for name in code.co_freevars]
        names = getattr(function, "__globals__", {})
        at_hand += [names.get(name) for name in code.co_names]
    return next((one for one in at_hand if isinstance(one, keras.Model)), None)


def is_dataset_of_arrays(filename: str, name: str) -> bool:
    """Whether a frame is that of a dataset being made of arrays, which is `self` there."""
    return name == "__init__" and filename.endswith(_DATASETS_OF_ARRAYS)


def graph_in_force() -> Any:
    """The FuncGraph that is being traced; None in eager mode."""
    graph = ops.get_default_graph()
    return graph if isinstance(graph, FuncGraph) else None


def is_graph(thing: Any) -> bool:
    """Whether something is a FuncGraph."""
    return isinstance(thing, FuncGraph)


def kinds_of_graphs() -> list[type]:
    """The class of FuncGraphs and those derived from it."""
    kinds: list[type] = [FuncGraph]
    for kind in kinds:  # which grows meanwhile
        kinds.extend(kind.__subclasses__())
    return kinds


def count_closures() -> int:
    """How many Python functions TensorFlow can call."""
    return int(script_ops._py_funcs.size())


def count_gradients() -> int:
    """How many gradients TensorFlow knows, its own among them."""
    return len(_gradients())


def signatures_of(function: Any) -> list[dict[str, Any]]:
    """The types of the arguments of each trace that a tf.function holds, by name."""
    return [
        {name: parameter.type_constraint for name, parameter in one.function_type.parameters.items()}
        for one in function._list_all_concrete_functions()
    ]


def is_python_value(kind: Any) -> bool:
    """Whether an argument of a trace was a Python value, for which a trace is good only once."""
    return type(kind).__name__ == "Literal"


def bytes_of(tensor: Any) -> int:
    """The size of an eager tensor's values; what is not numbers counts as nothing."""
    size = tensor.dtype.size
    return int(tensor._num_elements()) * size if size and tensor.dtype.is_numpy_compatible else 0


def _gradients() -> dict[str, dict[str, Any]]:
    registry: dict[str, dict[str, Any]] = ops._gradient_registry._registry
    return registry


def let_gradients_go_with_their_graphs(is_meant: Callable[[Any], bool]) -> int:
    """Let gradients of graphs that are meant live as long as their graph, not for ever; returns how many.

    TensorFlow's registry holds the function of every custom gradient, which holds the graph that it was
    traced in. Here the graph holds the function instead, and the registry knows it only as long as it lives.
    """
    done = 0
    for name, entry in list(_gradients().items()):
        graph = _graph_of_gradient(entry["type"]) if name.startswith(_CUSTOM_GRADIENT) else None
        if graph is not None and is_meant(graph):
            _hold(graph, entry["type"])
            entry["type"] = _weak_gradient(name, entry["type"])
            done += 1
    return done


def _graph_of_gradient(gradient: Any) -> Any:
    """The FuncGraph that a custom gradient pins; None where it pins none."""
    function = _enclosed(gradient, "tape_grad_fn")
    results = None if function is None else _enclosed(function, "result")
    tensors = [leaf for leaf in tf.nest.flatten(results, expand_composites=True) if hasattr(leaf, "graph")]
    graph = tensors[0].graph if tensors and not isinstance(tensors[0], EagerTensor) else None
    return graph if isinstance(graph, FuncGraph) else None


def _enclosed(function: Any, name: str) -> Any:
    """What a function has enclosed by a name; None where there is no such name."""
    code = getattr(function, "__code__", None)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) if code else {}
    if name not in cells or cells[name] == types.CellType():  # which is empty until it is assigned
        return None
    return cells[name].cell_contents


def _weak_gradient(name: str, gradient: Any) -> Callable[..., Any]:
    known = weakref.ref(gradient, lambda _: _gradients().pop(name, None))

    def call(operation: Any, *gradients: Any) -> Any:
        return known()(operation, *gradients)  # type: ignore[misc]  # alive, since the operation's graph is

    return call


def _hold(graph: Any, thing: Any) -> None:
    """Keep something alive for as long as a graph or one of those around it is."""
    while isinstance(graph, FuncGraph):
        held = getattr(graph, _HELD, None)
        if held is None:
            held = []
            setattr(graph, _HELD, held)
        held.append(thing)
        graph = graph.outer_graph


def let_closures_go_with_their_graph(graph: Any) -> int:
    """Let Python functions that a graph calls live as long as it does, not for ever; returns how many."""
    tokens = [one.get_attr("token") for one in graph.get_operations() if one.type in _OF_PYTHON]
    outermost = graph
    while isinstance(outermost, FuncGraph):
        outermost = outermost.outer_graph
    held_for_ever = getattr(outermost, "_py_funcs_used_in_graph", [])
    done = 0
    for token in tokens:
        function = script_ops._py_funcs.get(token.decode())
        places = [place for place, other in enumerate(held_for_ever) if other is function]
        if function is not None and places:
            _hold(graph, function)
            del held_for_ever[places[0]]
            done += 1
    return done


def variables_in(graph: Any) -> list[Any] | None:
    """The variables that a graph uses; None where some of them are gone, so that nobody can call it."""
    with suppress(AssertionError):
        return list(graph.variables)
    return None


def forget_kernels() -> None:
    """Let TensorFlow drop the kernels that it keeps ready for functions and operations."""
    context.context().clear_kernel_cache()


def is_of_keras(filename: str) -> bool:
    """Whether a file is one of Keras' own."""
    return "/keras/src/" in filename.replace("\\", "/")


def draws_numbers(graph: Any) -> bool:
    """Whether a graph has operations whose random state is in their kernels, and is lost with them."""
    return any(one.type.startswith(_RANDOM) for one in graph.get_operations())


def uncompile(model: Any) -> None:
    """Take back `compile`: the optimizer and its slots are no longer the model's."""
    from keras.src.utils import tracking

    with tracking.DotNotTrackScope():
        model.optimizer = None
    vars(model).pop("_compile_config", None)  # which holds the optimizer as well
    model.compiled = False
