"""A function traced once, and what it does at any batch size: function + specs -> Program.

Nothing is run. The trace has an open batch dimension where the function allows it, and is optimised once, as
TensorFlow would; for a batch size that is set, and the shapes inferred.
"""

from __future__ import annotations

import copy
import functools
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from memfit.core.errors import MemfitError
from memfit.core.records import Op, OpGraph, Program, ProgramVariable
from memfit.graph.kernel_probes import Candidates
from memfit.graph.kernels import knowledge_of
from memfit.graph.labels import Labels, Lines
from memfit.graph.reader import Reader, put_handles
from memfit.model.traced_functions import traced
from memfit.model.training_data import filled, leaves_of
from memfit.private.tensorflow.graph_defs import (
    LOOPS,
    Maker,
    buffers_of,
    called_graph,
    maker_of_kernels,
    optimised,
)
from memfit.private.tensorflow.variables import handles_by_name


class Traced:
    """A graph, with its variables, which live as long as this; it is optimised while others go on."""

    def __init__(self, concrete: Any) -> None:
        self._concrete = concrete
        self.handles = handles_by_name(concrete.graph)
        self._lines = Lines(concrete.graph, called_graph)
        optimiser = ThreadPoolExecutor(1)  # TensorFlow lets others run meanwhile
        self._optimising = optimiser.submit(optimised, *self._to_be_optimised())
        optimiser.shutdown(wait=False)

    @functools.cached_property
    def kinds(self) -> set[str]:
        """The kinds of its operations."""
        return {operation.type for operation in self._concrete.graph.get_operations()}

    @property
    def has_loops(self) -> bool:
        """Whether anything in it runs several times."""
        return not self.kinds.isdisjoint(LOOPS)

    @property
    def is_open(self) -> bool:
        """Whether anything is fed with an open batch dimension."""
        return bool(self._opened)

    @property
    def outputs(self) -> list[str]:
        """The names of the tensors that it returns."""
        return [tensor.name for tensor in self._concrete.outputs]

    def read(self, reader: Reader, batch_size: int | Sequence[int]) -> OpGraph:
        """The OpGraph for a batch of this size, or for so many rows of each input that is fed open."""
        sizes = [batch_size] * len(self._opened) if isinstance(batch_size, int) else batch_size
        rows = dict(zip(self._opened, sizes, strict=True))
        graph_def = self._optimising.result()
        for node in graph_def.node:
            node.attr.pop("_output_shapes", None)  # they were inferred without it
            if node.name in rows:
                node.attr["shape"].shape.dim[0].size = rows[node.name]
        return reader.read(graph_def, self.outputs, self.handles, self._lines.of)

    @functools.cached_property
    def _opened(self) -> list[str]:
        """The names of what is fed with an open batch dimension."""
        fed = (tensor for tensor in self._concrete.inputs if tensor.dtype != tf.resource)
        return [tensor.op.name for tensor in fed if tensor.shape.rank and tensor.shape[0] is None]

    def _to_be_optimised(self) -> tuple[Any, list[str]]:
        """The GraphDef from which TensorFlow makes what it will really run, and the names it must keep."""
        func_graph = self._concrete.graph
        graph_def = func_graph.as_graph_def()
        _keep_loops_whole(graph_def)
        put_handles(graph_def, self.handles)
        keep = [tensor.name for tensor in (*self._concrete.inputs, *self._concrete.outputs)]
        keep += [operation.name for operation in func_graph.control_outputs]
        return graph_def, keep


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
        self._maker: Maker | None = None
        self._at = functools.lru_cache(maxsize=8)(self._read)

    def with_kernels_of(self, maker: Maker) -> Trace:
        """The same trace, read as if other kernels ran."""
        other = copy.copy(self)
        other._maker = maker
        other._at = functools.lru_cache(maxsize=8)(other._read)
        return other

    def begin(self) -> None:
        """Trace it, and leave it to TensorFlow to optimise it meanwhile."""
        if not self._jit_compile:
            _ = self._open

    @property
    def has_unknown_kernels(self) -> bool:
        """Whether the scratch of some operation is unknown, as far as the trace shows it at any size."""
        if self._jit_compile or self._open is None:
            return False
        maker = self._maker or maker_of_kernels()
        return any(knowledge_of(kind, maker) == "nothing" for kind in self._open[0].kinds)

    def at(self, batch_size: int) -> Program:
        """The Program of the step with a batch of this size."""
        return self._at(batch_size)

    def candidates(self, batch_size: int) -> Candidates:
        """The operations of the step that a probe could run with a batch of this size; none with XLA."""
        return {} if self._jit_compile else self._read_graph(batch_size, collect=True)[1]

    @functools.cached_property
    def _open(self) -> tuple[Traced, Labels] | None:
        """The trace with an open batch dimension; None where it has to be set, as it has with loops."""
        try:
            traced, labels = self._traced(self._specs)
        except MemfitError:
            raise
        except Exception:  # noqa: BLE001 - whatever a user's step raises; set to a size it may not
            return None
        return None if traced.has_loops else (traced, labels)

    def _traced(self, specs: Any) -> tuple[Traced, Labels]:
        with self._prepared() as labels:
            return Traced(traced(self._function, specs)), labels

    def _read(self, batch_size: int) -> Program:
        return self._read_compiled(batch_size) if self._jit_compile else self._read_graph(batch_size)[0]

    def _read_compiled(self, batch_size: int) -> Program:
        """One operation, with the memory that XLA has laid out for it."""
        specs = leaves_of(specs_at(self._specs, batch_size))

        def step(*flat: Any) -> Any:
            return self._function(filled(self._specs, flat))

        with self._prepared() as labels:
            concrete = traced(step, *specs, jit_compile=True)
            temporary, outputs = buffers_of(concrete, specs)
            variables = labels.in_order_of_creation(handles_by_name(concrete.graph).values())
            described = tuple(described_variable(variable, labels) for variable in variables)
        fed = [spec.shape.num_elements() * spec.dtype.size for spec in specs]
        return Program(
            batch_size=batch_size,
            method="xla",
            variables=described,
            graph=_launch(fed, temporary, outputs, len(described)),
            left_out=self._left_out,
        )

    def _read_graph(self, batch_size: int, *, collect: bool = False) -> tuple[Program, Candidates]:
        traced, labels = self._open or self._traced(specs_at(self._specs, batch_size))
        variables = labels.in_order_of_creation(traced.handles.values())
        reader = Reader(variables, labels, collect=collect, maker=self._maker)
        program = Program(
            batch_size=batch_size,
            method="graph",
            variables=tuple(described_variable(variable, labels) for variable in variables),
            graph=traced.read(reader, batch_size),
            bodies=tuple(reader.bodies),
            left_out=(*self._left_out, *reader.left_out),
        )
        return program, reader.candidates


def _launch(fed: list[int], temporary: list[int], outputs: list[int], variables: int) -> OpGraph:
    """One operation, and what it does to all variables at once while its temporary memory is there."""
    sizes = (*fed, *temporary, *outputs)
    given, made = tuple(range(len(fed))), tuple(range(len(fed), len(sizes)))
    handles = tuple(range(len(sizes), len(sizes) + variables))
    ops = (
        Op("XlaLaunch", inputs=given, outputs=made, seconds=1.0),
        *(
            Op("VarHandleOp", outputs=(handle,), role="variable", variable=number, cheap=True)
            for number, handle in enumerate(handles)
        ),
        Op("AssignVariableOp", inputs=handles, after=(0,), role="update", cheap=True),
        Op("NoOp", inputs=made[: len(temporary)], after=(variables + 1,)),
    )
    return OpGraph(ops, sizes + (0,) * variables, given, made[len(temporary) :])


def described_variable(variable: Any, labels: Labels) -> ProgramVariable:
    """A tf.Variable as a program knows it; one whose shape is open holds nothing yet."""
    shape = tuple(variable.shape) if variable.shape.rank is not None else (0,)
    name = labels.paths.get(id(variable), variable.name)
    role = labels.roles.get(id(variable), "other")
    is_weight = role == "weight"
    return ProgramVariable(
        name,
        math.prod(shape) * int(variable.dtype.size),
        role,
        layer=labels.layers.by_variable.get(id(variable), "") if is_weight else "",
        shape=shape,
        drawn=is_weight and len(shape) > 1,
    )


def specs_at(specs: Any, batch_size: int) -> Any:
    """Specs with their batch dimension set."""

    def at_size(spec: Any) -> Any:
        if spec is not None and spec.shape.rank and spec.shape[0] is None:
            return tf.TensorSpec((batch_size, *spec.shape[1:]), spec.dtype)
        return spec

    return keras.tree.map_structure(at_size, specs)


def _keep_loops_whole(graph_def: Any) -> None:
    """Let the optimiser leave loops and branches as they are instead of taking them apart."""
    bodies = (function.node_def for function in graph_def.library.function)
    for nodes in (graph_def.node, *bodies):
        for node in nodes:
            if "_lower_using_switch_merge" in node.attr:
                node.attr["_lower_using_switch_merge"].b = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Let no garbage be collected for a while.

    Where hundreds of thousands of objects are made and kept, as in a trace, it finds nothing and takes a
    third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
