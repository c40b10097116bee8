"""Graphs as they are traced and as TensorFlow optimises them, and what kernels and XLA programs allocate."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from memfit.private.patching import replaced
from memfit.private.tensorflow.runtime import uses_onednn

LOOPS = ("While", "StatelessWhile")
_TURNS = "parallel_iterations"  # that a loop begins before the first of them has ended

Maker = Literal["TensorFlow", "oneDNN", "GPU"]  # of kernels


def optimised(graph_def: Any, keep: list[str]) -> Any:
    """A GraphDef as TensorFlow's graph optimiser leaves it; nothing is run. `keep` names what has to stay.

    It decides as it does in a real run only if it knows what it knows there: on which device each node is
    put, and the shapes of variables (so they have to be handles, not placeholders).
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    bodies = (function.node_def for function in meta_graph.graph_def.library.function)
    for node in itertools.chain(meta_graph.graph_def.node, *bodies):
        node.device = node.device or f"/job:localhost/replica:0/task:0/device:{kind}:0"
    meta_graph.collection_def["train_op"].node_list.value.extend(keep)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    if uses_onednn() and _computes_in_16_bits(graph_def):
        # What oneDNN fuses there is an operation that only TensorFlow's later passes know.
        config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False)


def _computes_in_16_bits(graph_def: Any) -> bool:
    narrow = (tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum)
    return any(node.attr["T"].type in narrow for node in graph_def.node if "T" in node.attr)


def body_graph_def(function_def: Any, shapes: list[Any], library: Any) -> tuple[Any, list[str]]:
    """The GraphDef of a function in a library, and the names of the tensors that it returns."""
    from tensorflow.python.framework import function_def_to_graph

    plain = type(function_def)()
    plain.CopyFrom(function_def)
    plain.arg_attr.clear()  # shapes that were inferred before these were known
    graph_def, names = function_def_to_graph.function_def_to_graph_def(plain, shapes)
    known = {function.signature.name for function in graph_def.library.function}
    graph_def.library.function.extend(f for f in library.function if f.signature.name not in known)
    returned = [names[function_def.ret[arg.name]] for arg in function_def.signature.output_arg]
    return graph_def, returned


def maker_of_kernels() -> Maker:
    """The maker of the kernels that run: TensorFlow on a CPU, oneDNN instead for some, or that of a GPU."""
    if tf.config.list_physical_devices("GPU"):
        return "GPU"
    return "oneDNN" if uses_onednn() else "TensorFlow"


def scratch_of_run(graph: Any, name: str, values: dict[Any, Any], *, threads: int, runs: int) -> int:
    """Bytes that an operation allocates besides its outputs, at most at a time; the last of several runs."""
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto(intra_op_parallelism_threads=threads)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        for _ in range(runs):
            seen = config_pb2.RunMetadata()
            session.run(graph.get_operation_by_name(name), values, options=options, run_metadata=seen)
    prefix = "gpu" if maker_of_kernels() == "GPU" else ""
    return sum(
        memory.peak_bytes - memory.live_bytes
        for device in seen.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name == name
        for memory in node.memory
        if memory.allocator_name.lower().startswith(prefix)
    )


def called_graph(operation: Any) -> Any:
    """The graph that an operation of a traced graph calls; None where it calls none, or one never traced."""
    if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    function = operation.graph._functions.get(operation.get_attr("f").name)
    return getattr(function, "_cached_graph", None)


def body_of_loop(operation: Any) -> Any:
    """The graph that an operation of a traced graph runs again and again; None where it is no loop."""
    if operation.type not in LOOPS:
        return None
    function = operation.graph._functions.get(operation.get_attr("body").name)
    return getattr(function, "_cached_graph", None) or getattr(function, "graph", None)


def buffers_of(concrete: Any, specs: list[Any]) -> tuple[list[int], list[int]]:
    """Bytes that a trace with `jit_compile` needs besides its inputs: temporary ones, and outputs.

    The specs are of its inputs, one after the other, with all their sizes. XLA compiles it for that.
    """
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.python.eager.polymorphic_function.compiler_ir import from_concrete_function

    proto = hlo_pb2.HloProto()
    stage = "optimized_hlo_proto_serialized"
    proto.ParseFromString(from_concrete_function(concrete, specs)(stage=stage))
    own = [
        allocation
        for allocation in proto.buffer_assignment.buffer_allocations
        if not (
            allocation.is_thread_local or allocation.is_constant or allocation.is_entry_computation_parameter
        )
    ]
    temporary = [allocation.size for allocation in own if not allocation.maybe_live_out]
    return temporary, [allocation.size for allocation in own if allocation.maybe_live_out]


@contextmanager
def each_operation(note: Callable[[Any], None]) -> Iterator[None]:
    """Hand every operation that is traced in this thread to `note` as soon as it exists."""
    original, thread = FuncGraph._create_op_internal, threading.get_ident()

    def create(graph: Any, *arguments: Any, **options: Any) -> Any:
        operation = original(graph, *arguments, **options)
        if threading.get_ident() == thread:
            note(operation)
        return operation

    with replaced(FuncGraph, "_create_op_internal", create):
        yield


@contextmanager
def loops_begin_few_turns(turns: int) -> Iterator[None]:
    """Have loops that are traced in this thread begin so many turns at a time at most; Keras' take 32."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    original, thread = FuncGraph._create_op_internal, threading.get_ident()

    def create(graph: Any, kind: str, *arguments: Any, **options: Any) -> Any:
        attributes = options.get("attrs") or {}
        if kind in LOOPS and _TURNS in attributes and threading.get_ident() == thread:
            fewer = AttrValue(i=min(turns, attributes[_TURNS].i))
            options["attrs"] = {**attributes, _TURNS: fewer}
        return original(graph, kind, *arguments, **options)

    with replaced(FuncGraph, "_create_op_internal", create):
        yield


def is_in_loop(operation: Any) -> bool:
    """Whether an operation belongs to what a loop runs each time round."""
    return isinstance(operation.graph, WhileBodyFuncGraph)


def add_control_input(operation: Any, before: Any) -> None:
    """Have an operation of a graph that is being traced wait for another one."""
    operation._add_control_input(before)
