"""A GraphDef read as plain data: operations, bytes, scratch, and the graphs of loops and branches."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from memfit.core.records import Op, OpGraph, OpRole
from memfit.graph.costs import FUSED, cost_of
from memfit.graph.kernel_probes import KernelCandidate, kernel_of
from memfit.graph.kernels import Signature, is_cheap, knowledge_of, reuses_of, role_of, scratch_of
from memfit.graph.labels import Labels
from memfit.graph.loops import Items, items_of, say_shapes_of_items, trips
from memfit.graph.xla_buffers import Argument, CompiledFunctions, is_compiled
from memfit.guarding.step.room import may_rearrange_filter, outputs_checked
from memfit.private.tensorflow.graph_defs import LOOPS, Maker, body_graph_def, maker_of_kernels

_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NO_MEMORY = (tf.resource, tf.variant)
# What these make is small, or no memory of its own.
_SMALL = ("TensorListElementShape", "TensorListPopBack", "TensorListGetItem", "ReadVariableOp")
_LEAST_BYTES = 256  # the least that the allocator hands out
_STRING_BYTES = 24
_XLA_SECONDS = 1e-2
_HALVES = ("float16", "bfloat16")  # which kernels rearrange


class Reader:
    """Reads graphs and the graphs inside them, and collects what belongs to all of them."""

    def __init__(
        self,
        variables: Sequence[Any],
        labels: Labels,
        *,
        collect: bool = False,
        maker: Maker | None = None,
    ) -> None:
        """Variables are those of all graphs, in the order in which they were created.

        If it shall collect them, what a probe could run is in `candidates`. The kernels are those that run
        here, or of another maker.
        """
        self.labels = labels
        self._threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
        self.maker = maker or maker_of_kernels()
        self._numbers = {id(variable): number for number, variable in enumerate(variables)}
        self.bodies: list[OpGraph] = []
        self.left_out: dict[str, None] = {}
        self.candidates: dict[str, KernelCandidate] = {}
        self.collects = collect
        self._sizes: dict[int, tuple[Any, tuple[int, ...] | None, int]] = {}  # shapes and bytes, by identity

    def read(
        self, graph_def: Any, outputs: list[str], handles: dict[str, Any], line_of: Callable[[str], str]
    ) -> OpGraph:
        """The operations of a graph.

        `handles` are the variables by the names of what stands for them; `line_of` gives the user's line that
        an operation comes from, by its name.
        """
        return _GraphReader(self, graph_def, [], outputs, handles, {}, line_of).op_graph()

    @functools.cached_property
    def compiled(self) -> CompiledFunctions:
        """The functions that XLA compiles, each of them once."""
        return CompiledFunctions()

    def add_body(self, body: OpGraph) -> int:
        """Take a graph that others run; returns its number."""
        self.bodies.append(body)
        return len(self.bodies) - 1

    def signature(self, operation: Any) -> Signature:
        """Shapes and types of an operation."""
        taken, made = list(operation.inputs), list(operation.outputs)
        inputs, outputs = list(map(self._size_of, taken)), list(map(self._size_of, made))
        return Signature(
            kind=operation.type,
            inputs=tuple(shape for _, shape, _ in inputs),
            input_types=tuple(tensor.dtype.name for tensor in taken),
            input_bytes=tuple(size for _, _, size in inputs),
            outputs=tuple(shape for _, shape, _ in outputs),
            output_types=tuple(tensor.dtype.name for tensor in made),
            output_bytes=tuple(size for _, _, size in outputs),
            attribute=operation.get_attr,
            constant=lambda place: tf.get_static_value(taken[place]),
            threads=self._threads,
        )

    def bytes_of(self, tensor: Any) -> int:
        """The bytes of a tensor; none where its shape is unknown, which is noted."""
        return self._size_of(tensor)[2]

    def _size_of(self, tensor: Any) -> tuple[Any, tuple[int, ...] | None, int]:
        """A tensor with its shape and bytes, looked up once: it is an output and several inputs."""
        found = self._sizes.get(id(tensor))
        if found is None:
            shape = _shape(tensor)
            found = self._sizes[id(tensor)] = (tensor, shape, self._bytes(tensor, shape))
        return found

    def _bytes(self, tensor: Any, shape: tuple[int, ...] | None) -> int:
        dtype = tensor.dtype
        if dtype in _NO_MEMORY:
            return 0
        if shape is None:
            shape_of_something = dtype.is_integer and tensor.shape.rank == 1
            if tensor.op.type not in _SMALL and not shape_of_something:
                self.left_out[f"an output of {tensor.op.type} of unknown shape ({tensor.op.name})"] = None
            return 0
        return math.prod(shape) * int(_STRING_BYTES if dtype == tf.string else dtype.size)

    def note(self, operation: Any, signature: Signature, scratch: tuple[int, ...], *, known: bool) -> None:
        """Take an operation that a probe could run; of several with the same name the largest."""
        size = sum(signature.input_bytes) + sum(signature.output_bytes)
        before = self.candidates.get(operation.name)
        if before is None or before.tensor_bytes < size:
            said = sum(scratch) if known else None
            self.candidates[operation.name] = KernelCandidate(kernel_of(operation), size, said)

    def variable_number(self, variable: Any) -> int:
        """The number of a variable in the program."""
        return self._numbers[id(variable)]


class _GraphReader:
    """One graph."""

    def __init__(
        self,
        reader: Reader,
        graph_def: Any,
        inputs: list[str],
        outputs: list[str],
        handles: dict[str, Any],
        items: dict[str, Items],
        line_of: Callable[[str], str],
    ) -> None:
        self._line_of = line_of
        self._reader, self._library, self._handles = reader, graph_def.library, handles
        if items:
            say_shapes_of_items(graph_def, items)
        self._operations = _imported(graph_def, handles).get_operations()
        self._functions = {function.signature.name: function for function in self._library.function}
        self._tensors = list(itertools.chain.from_iterable(op.outputs for op in self._operations))
        self._numbers = {tensor.name: number for number, tensor in enumerate(self._tensors)}
        self._places = {op.name: number for number, op in enumerate(self._operations)}
        self._inputs = [f"{name}:0" for name in inputs] or [
            op.outputs[0].name
            for op in self._operations
            if op.type == "Placeholder" and op.outputs[0].dtype not in _NO_MEMORY
        ]
        self._outputs = outputs
        self._ends_of_loops: dict[str, int] = {}
        self.items = {f"{name}:0": held for name, held in items.items()}

    def op_graph(self) -> OpGraph:
        given = set(self._inputs)
        kept = [op for op in self._operations if not (op.outputs and op.outputs[0].name in given)]
        self._places = {op.name: number for number, op in enumerate(kept)}
        extra = dict[str, int]()
        sizes = [self._reader.bytes_of(tensor) for tensor in self._tensors]
        inputs = []
        for name in self._inputs:
            tensor = self._tensors[self._numbers[name]]
            if tensor.op.type == "VarHandleOp":  # it is read as the variable itself
                extra[name] = len(sizes)
                sizes.append(0)
                inputs.append(extra[name])
                kept.append(tensor.op)
                self._places[tensor.op.name] = len(kept) - 1
            else:
                inputs.append(self._numbers[name])
        return OpGraph(
            ops=tuple(self._op(operation) for operation in kept),
            tensors=tuple(sizes),
            inputs=tuple(inputs),
            outputs=tuple(self._numbers[name] for name in self._outputs if name in self._numbers),
        )

    def _held_by_list(self, operation: Any) -> Items | None:
        """The items of the list that an operation makes; None where it makes none."""
        if not operation.outputs or operation.outputs[0].dtype != tf.variant:
            return None
        held = items_of(operation, self.items)
        if held is not None:
            self.items[operation.outputs[0].name] = held
        return held

    def _op(self, operation: Any) -> Op:
        kind = operation.type
        if self._reader.collects and kind not in (*LOOPS, *_BRANCHES, *_CALLS):
            return self._collected(operation)
        common = {
            "kind": kind,
            "name": operation.name,
            "inputs": tuple(self._numbers[tensor.name] for tensor in operation.inputs),
            "outputs": tuple(self._numbers[tensor.name] for tensor in operation.outputs),
            "after": tuple(
                self._places[other.name] for other in operation.control_inputs if other.name in self._places
            ),
            "layer": self._reader.labels.layer_of(operation.name),
            "part": "gradients" if self._is_backward(operation) else "activations",
            "cheap": is_cheap(kind),
            "is_float": any(tensor.dtype == tf.float32 for tensor in operation.outputs),
        }
        if kind in (*LOOPS, *_BRANCHES, *_CALLS):
            return self._call(operation, common)
        held = self._held_by_list(operation)
        signature = self._reader.signature(operation)
        role = role_of(signature)
        reuses, reusing = reuses_of(signature) if role == "compute" else ((), 0)
        special: dict[str, Any] = {}
        if _holds_something(role, signature):  # looking up a line takes time
            special["line"] = self._line_of(operation.name)
        if role == "variable":
            special["variable"] = self._reader.variable_number(self._handles[operation.name])
        elif role == "fill":
            count = held.count if held is not None else None
            special |= {"times": count or 0, "scratch": (held.bytes_of_one,) if held is not None else ()}
        elif role == "compute":
            known = knowledge_of(kind, self._reader.maker) != "nothing"
            special |= {"scratch": scratch_of(signature), "known": known}
            if self._reader.maker == "oneDNN":
                special |= _room(kind.removeprefix(FUSED), signature, common["part"])
        return Op(**common, role=role, reuses=reuses, reusing=reusing, seconds=cost_of(operation), **special)

    def _collected(self, operation: Any) -> Op:
        """An operation of which nothing is needed but whether a probe could run it."""
        kind = operation.type
        self._held_by_list(operation)
        knowledge = knowledge_of(kind, self._reader.maker)
        if knowledge != "needs none":
            signature = self._reader.signature(operation)
            if role_of(signature) == "compute":
                known = knowledge != "nothing"
                self._reader.note(operation, signature, scratch_of(signature), known=known)
        return Op(kind)

    def _is_backward(self, operation: Any) -> bool:
        """Whether its name says so; sums of gradients have no name of their own."""
        labels = self._reader.labels
        if labels.is_backward(operation.name):
            return True
        return operation.type == "AddN" and any(
            labels.is_backward(tensor.op.name) for tensor in operation.inputs
        )

    def _call(self, operation: Any, common: dict[str, Any]) -> Op:
        """An operation that runs other graphs: a loop, the larger of several branches, or a function."""
        reader, kind = self._reader, operation.type
        common |= {"cheap": True, "line": self._line_of(operation.name)}
        if kind in LOOPS:
            times = trips(operation, self._functions, self._ends_of_loops)
            if times is None:
                reader.left_out[f"how often the loop {operation.name} runs; counted as once"] = None
            return Op(
                **common,
                role="call",
                body=self._body(operation, operation.get_attr("body").name),
                times=times or 1,
                parallel=int(operation.get_attr("parallel_iterations")),
            )
        if kind in _BRANCHES:
            names = (
                [operation.get_attr(name).name for name in ("then_branch", "else_branch")]
                if kind in ("If", "StatelessIf")
                else [function.name for function in operation.get_attr("branches")]
            )
            places = [self._body(operation, name, skip=1) for name in names]
            largest = max(places, key=lambda place: sum(reader.bodies[place].tensors))
            return Op(**common, role="call", body=largest)
        function = self._functions[operation.get_attr("f").name]
        if is_compiled(operation, function):
            arguments = [Argument.of(t, self._handles.get(t.op.name)) for t in operation.inputs]
            size = reader.compiled.temporary_bytes(function, arguments, self._library)
            if size is None:
                reader.left_out[f"the temporary memory of {operation.name}, which XLA compiles"] = None
            return Op(**{**common, "cheap": False}, scratch=(size,) if size else (), seconds=_XLA_SECONDS)
        return Op(**common, role="call", body=self._body(operation, function.signature.name))

    def _body(self, operation: Any, name: str, *, skip: int = 0) -> int:
        """Read the function that an operation calls, with all but the first `skip` inputs; its number.

        Where it returns lists, take note of what they hold.
        """
        function, taken = self._functions[name], list(operation.inputs)[skip:]
        names = [arg.name for arg in function.signature.input_arg]
        shapes = [tensor.shape for tensor in taken]
        graph_def, returned = body_graph_def(function, shapes, self._library)
        for node in graph_def.node:
            node.attr.pop("_output_shapes", None)
        given = list(zip(names, taken, strict=True))
        handles = {n: self._handles[t.op.name] for n, t in given if t.op.name in self._handles}
        items = {n: self.items[t.name] for n, t in given if t.name in self.items}
        line = self._line_of(operation.name)  # of all that it does
        body = _GraphReader(self._reader, graph_def, names, returned, handles, items, lambda _: line)
        read = body.op_graph()
        if skip:
            extra = tuple(range(len(read.tensors), len(read.tensors) + skip))
            read = OpGraph(read.ops, read.tensors + (0,) * skip, extra + read.inputs, read.outputs)
        held = (
            (tensor.name, body.items.get(name))
            for tensor, name in zip(operation.outputs, returned, strict=True)
        )
        self.items.update((tensor, items) for tensor, items in held if items is not None)
        return self._reader.add_body(read)


def _room(kind: str, signature: Signature, part: str) -> dict[str, int]:
    """The room that a guard makes sure of: in multiples of the first output, and for a filter."""
    count = outputs_checked(kind, is_backward=part == "gradients")
    if not count:
        return {}
    is_half = signature.output_types[0] in _HALVES
    filter_bytes = signature.input_bytes[1] if may_rearrange_filter(kind) else 0
    return {"rooms": 4 * count if is_half else count, "filter_bytes": filter_bytes}


def _holds_something(role: OpRole, signature: Signature) -> bool:
    """Whether what an operation makes takes memory, and is no mere number."""
    makes = role in ("compute", "constant") and sum(signature.output_bytes) >= _LEAST_BYTES
    return makes or role == "fill"


def put_handles(graph_def: Any, handles: dict[str, Any]) -> None:
    """Let placeholders of variables become their handles, which know their shapes."""
    for node in graph_def.node:
        if node.name in handles and node.op == "Placeholder":
            variable = handles[node.name]
            node.op = "VarHandleOp"
            node.attr.clear()
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()


def _imported(graph_def: Any, handles: dict[str, Any]) -> Any:
    """A graph with all shapes that follow from its inputs."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    _take_handles_past_loops(copy)
    put_handles(copy, handles)
    for node in copy.node:
        node.device = ""
    imported = tf.Graph()
    with imported.as_default():
        tf.import_graph_def(copy, name="")
    return imported


def _take_handles_past_loops(graph_def: Any) -> None:
    """A handle that comes out of a loop is the one that went in, only later; there its shape is known."""
    went_in = dict[str, str]()
    for node in graph_def.node:
        if node.op in LOOPS:
            for place, kind in enumerate(node.attr["T"].list.type):
                if kind == tf.resource.as_datatype_enum:
                    went_in[f"{node.name}:{place}" if place else node.name] = node.input[place]
    for node in graph_def.node:
        for place, name in enumerate(list(node.input)):
            source = name
            while source in went_in:
                node.input.append(f"^{source.partition(':')[0]}")
                source = went_in[source]
            node.input[place] = source


def _shape(tensor: Any) -> tuple[int, ...] | None:
    shape = tensor.shape
    return tuple(shape) if shape.rank is not None and shape.is_fully_defined() else None
