"""FuncGraphs, and the Python functions and gradients that TensorFlow holds for them."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import script_ops
from tensorflow.python.util import tf_stack

from memfit.private.patching import overridden, replaced
from memfit.private.tensorflow.eager_tensors import EagerTensor

_CUSTOM_GRADIENT = "CustomGradient-"
CALLS_OF_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})  # kinds of operations
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


def is_call_of_function(filename: str, name: str) -> bool:
    """Whether a frame is that of a tf.function being called, which is `self` there."""
    return name == "_call" and filename.endswith("polymorphic_function.py")


def is_tracing(filename: str, name: str) -> bool:
    """Whether a frame is that of a tf.function being traced for new arguments."""
    return name == "_maybe_define_function" and filename.endswith("tracing_compilation.py")


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
    """The number of Python functions that TensorFlow can call."""
    return int(script_ops._py_funcs.size())


def count_gradients() -> int:
    """The number of gradients in TensorFlow's registry, its own among them."""
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


def _gradients() -> dict[str, dict[str, Any]]:
    registry: dict[str, dict[str, Any]] = ops._gradient_registry._registry
    return registry


@contextmanager
def gradients_go_with_their_graphs() -> Iterator[None]:
    """Let gradients that are registered in here live as long as their graph, not for ever."""
    before = set(_gradients())
    try:
        yield
    finally:
        let_gradients_go_with_their_graphs(lambda graph: True, but=before)


def let_gradients_go_with_their_graphs(is_meant: Callable[[Any], bool], *, but: Collection[str] = ()) -> int:
    """Let gradients of graphs that are meant live as long as their graph, not for ever; returns how many.

    TensorFlow's registry holds the function of every custom gradient, which holds the graph that it was
    traced in. Here the graph holds the function instead, and the registry knows it only as long as it lives.
    """
    done = 0
    for name, entry in list(_gradients().items()):
        is_custom = name.startswith(_CUSTOM_GRADIENT) and name not in but
        graph = _graph_of_gradient(entry["type"]) if is_custom else None
        if graph is not None and is_meant(graph):
            _hold(graph, entry["type"])
            entry["type"] = _weak_gradient(name, entry["type"])
            done += 1
    return done


def _graph_of_gradient(gradient: Any) -> Any:
    """The FuncGraph that a custom gradient pins; None where it pins none."""
    function = enclosed(gradient, "tape_grad_fn")
    results = None if function is None else enclosed(function, "result")
    tensors = [leaf for leaf in tf.nest.flatten(results, expand_composites=True) if hasattr(leaf, "graph")]
    graph = tensors[0].graph if tensors and not isinstance(tensors[0], EagerTensor) else None
    return graph if isinstance(graph, FuncGraph) else None


def enclosed(function: Any, name: str) -> Any:
    """The value of a variable in a function's closure, by name; None where there is no such name."""
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
    tokens = [one.get_attr("token") for one in graph.get_operations() if one.type in CALLS_OF_PYTHON]
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


def draws_numbers(graph: Any) -> bool:
    """Whether a graph has operations whose random state is in their kernels, and is lost with them."""
    return any(one.type.startswith(_RANDOM) for one in graph.get_operations())
