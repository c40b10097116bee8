"""A function traced once, and what it does at any batch size: function + specs -> Program.

Nothing is run. The trace has an open batch dimension where the function allows it; for a batch size that is
set, the graph optimised as TensorFlow would, and the shapes inferred.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import MemfitError
from memfit.models.graphs import graph
from memfit.programs import internals
from memfit.programs.labels import Labels
from memfit.programs.readings import Reader
from memfit.records import Op, OpGraph, Program, ProgramVariable

_LOOPS = ("While", "StatelessWhile")


@dataclass(frozen=True)
class _Traced:
    """A graph, with its variables by their handles; they live as long as this."""

    concrete: Any
    variables: dict[str, Any]
    labels: Labels


class Trace:
    """A traced step."""

    def __init__(
        self,
        function: Callable[..., Any],
        specs: Any,
        *,
        prepared: Callable[[], AbstractContextManager[Labels]] = lambda: nullcontext(Labels()),
        jit_compile: bool = False,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """Specs are a structure of TensorSpecs of one argument, the batch dimension open.

        `prepared` is a context in which the function can be traced; it says what belongs to what.
        """
        self._function, self._specs = function, specs
        self._prepared = prepared
        self._jit_compile = jit_compile
        self._left_out = left_out
        self._at = functools.lru_cache(maxsize=8)(self._read)

    def at(self, batch_size: int) -> Program:
        """What the step does with a batch of this size."""
        return self._at(batch_size)

    @functools.cached_property
    def _open(self) -> _Traced | None:
        """The trace with an open batch dimension; None where it has to be set, as it has with loops."""
        try:
            traced = self._traced(self._specs)
        except MemfitError:
            raise
        except Exception:  # noqa: BLE001 - whatever a user's step raises; set to a size it may not
            return None
        return None if _has_loops(traced.concrete.graph) else traced

    def _traced(self, specs: Any) -> _Traced:
        with self._prepared() as labels:
            concrete = graph(self._function).get_concrete_function(specs)
            variables = internals.handles_by_name(concrete.graph)
            return _Traced(concrete, labels.in_order_of_creation(variables), labels)

    def _for(self, batch_size: int) -> _Traced:
        if self._open is not None:
            return self._open
        return self._traced(self._specs_at(batch_size))

    def _specs_at(self, batch_size: int) -> Any:
        return keras.tree.map_structure(lambda spec: _at_size(spec, batch_size), self._specs)

    def _read(self, batch_size: int) -> Program:
        return self._read_compiled(batch_size) if self._jit_compile else self._read_graph(batch_size)

    def _read_compiled(self, batch_size: int) -> Program:
        """One operation, with the memory that XLA has laid out for it."""
        specs = keras.tree.flatten(self._specs_at(batch_size))

        def step(*flat: Any) -> Any:
            return self._function(keras.tree.pack_sequence_as(self._specs, list(flat)))

        with self._prepared() as labels:
            compiled = graph(step, jit_compile=True)
            func_graph = compiled.get_concrete_function(*specs).graph
            temporary, outputs = internals.buffers_of(compiled, specs)
            known = labels.in_order_of_creation(internals.handles_by_name(func_graph))
            unique = {id(variable): variable for variable in known.values()}
            variables = tuple(_variable(variable, labels) for variable in unique.values())
        fed = [spec.shape.num_elements() * spec.dtype.size for spec in specs]
        sizes = (*fed, *temporary, *outputs)
        given, made = tuple(range(len(fed))), tuple(range(len(fed), len(sizes)))
        launch = Op("XlaLaunch", inputs=given, outputs=made, seconds=1.0)
        return Program(
            batch_size=batch_size,
            method="xla",
            variables=variables,
            graph=OpGraph((launch,), sizes, given, made[len(temporary) :]),
            left_out=self._left_out,
        )

    def _read_graph(self, batch_size: int) -> Program:
        traced = self._for(batch_size)
        concrete, func_graph = traced.concrete, traced.concrete.graph
        graph_def = func_graph.as_graph_def()
        _set_batch(graph_def, batch_size)
        _keep_loops_whole(graph_def)
        keep = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
        keep += [operation.name for operation in func_graph.control_outputs]
        optimised = internals.optimised(func_graph, graph_def, keep)
        reader = Reader(traced.variables, traced.labels)
        op_graph = reader.read(optimised, [tensor.name for tensor in concrete.outputs])
        return Program(
            batch_size=batch_size,
            method="graph",
            variables=tuple(_variable(variable, traced.labels) for variable in reader.variables),
            graph=op_graph,
            bodies=tuple(reader.bodies),
            left_out=(*self._left_out, *reader.left_out),
        )


def _variable(variable: Any, labels: Labels) -> ProgramVariable:
    size = variable.shape.num_elements() * variable.dtype.size
    name = labels.paths.get(id(variable), variable.name)
    role = labels.roles.get(id(variable), "other")
    if role != "weight":
        return ProgramVariable(name, int(size), role)
    return ProgramVariable(name, int(size), role, labels.layer_of(name), drawn=variable.shape.rank > 1)


def _has_loops(func_graph: Any) -> bool:
    return any(operation.type in _LOOPS for operation in func_graph.get_operations())


def _at_size(spec: Any, batch_size: int) -> Any:
    if spec.shape.rank and spec.shape[0] is None:
        return tf.TensorSpec((batch_size, *spec.shape[1:]), spec.dtype)
    return spec


def _set_batch(graph_def: Any, batch_size: int) -> None:
    """Fill the open dimension of what is fed, and let go of shapes that were inferred without it."""
    for node in graph_def.node:
        node.attr.pop("_output_shapes", None)
        if node.op == "Placeholder" and node.attr["dtype"].type != tf.resource.as_datatype_enum:
            sizes = node.attr["shape"].shape.dim
            if len(sizes) and sizes[0].size == -1:
                sizes[0].size = batch_size


def _keep_loops_whole(graph_def: Any) -> None:
    """Let the optimiser leave loops and branches as they are instead of taking them apart."""
    bodies = (function.node_def for function in graph_def.library.function)
    for nodes in (graph_def.node, *bodies):
        for node in nodes:
            if "_lower_using_switch_merge" in node.attr:
                node.attr["_lower_using_switch_merge"].b = False
