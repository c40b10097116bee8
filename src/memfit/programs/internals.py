"""Every private name of TensorFlow that reading a program relies on.

`tests/facts/test_program_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from memfit.devices import onednn
from memfit.programs.kernels import Maker


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
    if onednn.is_used() and _computes_in_16_bits(graph_def):
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


@contextmanager
def variables_without_memory(*, from_bytes: int = 0) -> Iterator[None]:
    """Let variables be created that have a shape and no value: they take no memory and can only be traced.

    Those of fewer bytes than `from_bytes` are created as usual.
    """
    from tensorflow.python.ops import resource_variable_ops

    def create(create_as_usual: Any, **options: Any) -> Any:
        value, shape, dtype = (options.get(name) for name in ("initial_value", "shape", "dtype"))
        if callable(value):
            with scratch.as_default():
                made = tf.convert_to_tensor(value(), dtype)
            shape, dtype = shape or made.shape, dtype or made.dtype
        elif value is not None:
            value = tf.convert_to_tensor(value, dtype)
            shape, dtype = shape or value.shape, dtype or value.dtype
        if shape is not None and tf.TensorShape(shape).num_elements() * tf.as_dtype(dtype).size < from_bytes:
            return create_as_usual(**options)
        return resource_variable_ops.UninitializedVariable(
            shape=shape, dtype=dtype, trainable=options.get("trainable"), name=options.get("name")
        )

    scratch = tf.Graph()
    with tf.variable_creator_scope(create):
        yield


def maker_of_kernels() -> Maker:
    """Whose kernels run: TensorFlow's own on a CPU, those of oneDNN instead of some, or those of a GPU."""
    if tf.config.list_physical_devices("GPU"):
        return "GPU"
    return "oneDNN" if onednn.is_used() else "TensorFlow"


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


def handles_by_name(graph: Any) -> dict[str, Any]:
    """The variable behind each placeholder of a traced graph that stands for one."""
    variables = {id(variable.handle): variable for variable in graph.variables}
    return {
        inside.op.name: variables[id(outside)]
        for outside, inside in graph.captures
        if id(outside) in variables
    }


def called_graph(operation: Any) -> Any:
    """The graph that an operation of a traced graph calls; None where it calls none, or one never traced."""
    if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    function = operation.graph._functions.get(operation.get_attr("f").name)
    return getattr(function, "_cached_graph", None)


def buffers_of(compiled: Any, specs: list[Any]) -> tuple[list[int], list[int]]:
    """Bytes that a function with `jit_compile` needs besides its inputs: temporary ones, and outputs."""
    from tensorflow.compiler.xla.service import hlo_pb2

    proto = hlo_pb2.HloProto()
    stage = "optimized_hlo_proto_serialized"
    proto.ParseFromString(compiled.experimental_get_compiler_ir(*specs)(stage=stage))
    own = [
        allocation
        for allocation in proto.buffer_assignment.buffer_allocations
        if not (
            allocation.is_thread_local or allocation.is_constant or allocation.is_entry_computation_parameter
        )
    ]
    temporary = [allocation.size for allocation in own if not allocation.maybe_live_out]
    return temporary, [allocation.size for allocation in own if allocation.maybe_live_out]
