"""tf.functions that belong to one object, and what is written in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from memfit.core.records.programs import TURNS_AT_ONCE
from memfit.private.tensorflow.function_graphs import CALLS_OF_PYTHON, gradients_go_with_their_graphs
from memfit.private.tensorflow.graph_defs import loops_begin_few_turns

_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparse", "ResourceStridedSliceAssign")
_DRAWS = frozenset({
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "RandomShuffle",
    "Multinomial", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "ParameterizedTruncatedNormal",
})  # fmt: skip
_HARMLESS = frozenset({
    "Assert", "CheckNumerics", "Print", "PrintV2", "NoOp", "Placeholder", "ReadVariableOp", "ResourceGather",
    "ResourceGatherNd", "VarHandleOp", "VariableShape", "VarIsInitializedOp", "StatefulPartitionedCall", "If",
    "While", "Case", "DisableCopyOnRead", "Empty", "LookupTableFindV2", "XlaLaunch",
    "StatelessRandomGetKeyCounter",
})  # fmt: skip


def traced(function: Callable[..., Any], *specs: Any, **options: Any) -> Any:
    """The trace of a function for arguments like these.

    TensorFlow holds custom gradients for ever, and with them the graph and every variable that it uses: a
    model that was trained would never go. Those of this trace go with it. And it counts traces by source
    line and warns users of 'retracing' when several objects trace the same line once each; a partial has no
    source line.
    """
    with gradients_go_with_their_graphs():
        partial = tf.function(functools.partial(function), autograph=False, **options)
        return partial.get_concrete_function(*specs)


class Graph:
    """A function traced once, when it is first needed, its loops to run a few turns at a time.

    A call goes straight to the trace: a tf.function looks for it anew in every call, which takes half a
    millisecond.
    """

    def __init__(
        self, function: Callable[..., Any], signature: list[Any], *, jit_compile: bool = False
    ) -> None:
        self._function, self._options = function, {"input_signature": signature, "jit_compile": jit_compile}

    @functools.cached_property
    def concrete(self) -> Any:
        """The trace."""
        with loops_begin_few_turns(TURNS_AT_ONCE):
            return traced(self._function, **self._options)

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        return self.concrete(*inputs)


def operations_so_far() -> int:
    """The number of operations in the graph that is being traced."""
    return len(tf.compat.v1.get_default_graph().get_operations())


def is_in_graph(tensor: Any, graph: Any) -> bool:
    """Whether a gradient (or None) is a tensor of this graph; with no graph, an eager one."""
    if tensor is None:
        return True
    tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return tf.is_tensor(tensor) and getattr(tensor, "graph", None) is graph


def depends_on(tensor: Any, sources: Iterable[Any]) -> bool:
    """Whether the value of a tensor follows from any of these tensors of its graph."""
    wanted, pending, seen = {id(source) for source in sources}, [tensor], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            pending.extend(one.op.inputs)
    return False


def written_variables(concrete: Any) -> list[Any]:
    """Every tf.Variable that a traced function may assign to."""
    handles = {id(internal): id(external) for external, internal in concrete.graph.captures}
    written: set[int] = set()
    for operation, writes in _operations(concrete.graph):
        if writes:
            written.update(handles.get(id(tensor), 0) for tensor in operation.inputs)
    return [variable for variable in concrete.graph.variables if id(variable.handle) in written]


def foreign_state(concrete: Any) -> list[str]:
    """The side effects of a traced function: writing variables, drawing numbers, calling Python."""
    found: dict[str, None] = {}
    names = {id(variable.handle): variable.name for variable in concrete.graph.variables}
    handles = {id(internal): id(external) for external, internal in concrete.graph.captures}
    for operation, writes in _operations(concrete.graph):
        if writes:
            targets = [names[handles[id(t)]] for t in operation.inputs if handles.get(id(t), 0) in names]
            found[f"it writes {', '.join(targets) or 'a variable'} outside Keras"] = None
    for kind in _kinds(concrete.graph):
        if kind in _DRAWS:
            found["it draws random numbers outside Keras, and draws others in a second try"] = None
        elif kind in CALLS_OF_PYTHON:
            found["it calls Python code, which runs again in a second try"] = None
    for operation in concrete.graph.get_operations():
        known = operation.type in _HARMLESS | _DRAWS | CALLS_OF_PYTHON or operation.type.startswith(_WRITES)
        if operation.op_def is not None and operation.op_def.is_stateful and not known:
            found[f"it runs {operation.type}, which keeps state of its own"] = None
    return list(found)


def why_not_repeatable(operations: list[Any]) -> str | None:
    """The reason why these operations would give something else when run once more; None without one."""
    for operation in operations:
        if operation.type in _DRAWS:
            return "it draws random numbers outside Keras"
        if operation.type in CALLS_OF_PYTHON:
            return "it calls Python code"
        if operation.type.startswith(_WRITES):
            return "it writes a variable outside Keras"
        stateful = operation.op_def is not None and operation.op_def.is_stateful
        if stateful and operation.type not in _HARMLESS:
            return f"it runs {operation.type}, which keeps state of its own"
    return None


def _operations(func_graph: Any) -> list[tuple[Any, bool]]:
    """Each operation of a graph, and whether it or a function that it calls writes variables."""
    bodies = _bodies(func_graph)
    return [
        (operation, operation.type.startswith(_WRITES) or _calls_a_writer(operation.node_def, bodies))
        for operation in func_graph.get_operations()
    ]


def _bodies(func_graph: Any) -> dict[str, Any]:
    """The functions that a graph calls, by name."""
    calls = any(_called(operation.node_def) for operation in func_graph.get_operations())
    library = func_graph.as_graph_def().library.function if calls else ()
    return {body.signature.name: body for body in library}


def _called(node: Any) -> list[str]:
    names = []
    for attribute in node.attr.values():
        names.extend([attribute.func.name] if attribute.func.name else [])
        names.extend(function.name for function in attribute.list.func)
    return names


def _calls_a_writer(node: Any, bodies: dict[str, Any]) -> bool:
    pending, seen = _called(node), set()
    while pending:
        name = pending.pop()
        if name in seen or name not in bodies:
            continue
        seen.add(name)
        for inner in bodies[name].node_def:
            if inner.op.startswith(_WRITES):
                return True
            pending.extend(_called(inner))
    return False


def _kinds(func_graph: Any) -> set[str]:
    """Every kind of operation in a graph and in the functions that it calls."""
    kinds = {operation.type for operation in func_graph.get_operations()}
    for body in _bodies(func_graph).values():
        kinds.update(node.op for node in body.node_def)
    return kinds
