"""Facts behind `memfit.private.tensorflow.graph_defs`: what breaks if a private name of TensorFlow goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.private.tensorflow import graph_defs
    from memfit.private.tensorflow.graph_defs import (
        body_graph_def,
        body_of_loop,
        buffers_of,
        called_graph,
        maker_of_kernels,
        scratch_of_run,
    )

    seen: dict[str, Any] = {}
    weight = tf.Variable(tf.ones((4, 4)))

    def step(x: Any) -> Any:
        bigger = tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y @ weight), (0, x))[1]
        return tf.nn.relu(tf.nn.bias_add(bigger + 0.0, tf.ones(4)))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def tanh(x: Any) -> Any:
        return tf.tanh(x)

    def lines(x: Any) -> Any:
        twice = [tf.exp(x) for _ in range(2)]
        return *twice, tf.exp(x), tanh(x)

    shown = tf.function(lines, autograph=False).get_concrete_function(tf.TensorSpec((4,)))
    tracebacks = [op.traceback for op in shown.graph.get_operations() if op.type == "Exp"]
    called = [called_graph(operation) for operation in shown.graph.get_operations()]
    graphs = [graph for graph in called if graph is not None]
    seen["called"] = [[op.type for op in graph.get_operations()] for graph in graphs]
    inside = [frame.filename == __file__ for frame in tracebacks[0]]
    seen["tracebacks"] = [len(set(tracebacks)), inside[-1], any(inside), len(inside) > 5]

    concrete = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((None, 4)))
    bodies = filter(None, map(body_of_loop, concrete.graph.get_operations()))
    seen["bodies"] = [sum(op.type == "MatMul" for op in body.get_operations()) for body in bodies]
    graph_def = concrete.graph.as_graph_def()
    for node in graph_def.node:
        if "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = False
    keep = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    optimised = graph_defs.optimised(graph_def, keep)
    kinds = {node.op for node in optimised.node}
    seen["optimised"] = [
        "While" in kinds,
        "StatelessWhile" in kinds,
        len(optimised.node) < len(graph_def.node),
    ]

    loop = next(node for node in optimised.node if node.op in ("While", "StatelessWhile"))
    functions = {function.signature.name: function for function in optimised.library.function}
    body = functions[loop.attr["body"].func.name]
    shapes = [tf.TensorShape([])] * len(body.signature.input_arg)
    inner, returned = body_graph_def(body, shapes, optimised.library)
    seen["body"] = ["MatMul" in {node.op for node in inner.node}, len(returned) == len(shapes)]

    compiled = tf.function(lambda x: tf.reduce_sum(tf.linalg.matmul(x, x) ** 2), jit_compile=True)
    specs = [tf.TensorSpec((256, 256))]
    temporary, outputs = buffers_of(compiled.get_concrete_function(tf.TensorSpec((None, 256))), specs)
    seen["buffers"] = [sum(temporary) >= 256 * 256 * 4, sum(outputs) >= 4]

    seen["maker"] = maker_of_kernels()
    with tf.Graph().as_default() as alone:
        images, made = tf.zeros((2, 32, 32, 8)), tf.zeros((2, 32, 32, 8))
        tf.raw_ops.Conv2DBackpropFilter(
            input=images,
            filter_sizes=[3, 3, 8, 8],
            out_backprop=made,
            strides=[1] * 4,
            padding="SAME",
            name="filter",
        )
        tf.linalg.matmul(tf.zeros((64, 64)), tf.zeros((64, 64)), name="product")
    scratch = [scratch_of_run(alone, name, {}, threads=2, runs=1) for name in ("filter", "product")]
    seen["scratch"] = [scratch[0] > 1 << 20, scratch[1] == 0]
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-graph-defs", lambda: run_limited(_use_them, "2GiB"))


def test_operations_know_their_lines(seen: Any) -> None:
    """`op.traceback`: outermost first, and equal for equal stacks; without that, lines are slow to find."""
    assert seen["tracebacks"] == [2, False, True, True]


def test_called_functions_have_graphs(seen: Any) -> None:
    """`_functions`, `_cached_graph`: without them steps in micro-batches have no lines."""
    assert seen["bodies"] == [1]
    assert seen["called"] == [["Placeholder", "Tanh", "Identity"]]


def test_graphs_are_optimised_as_in_a_run(seen: Any) -> None:
    """`tf_optimizer`: without it the graph is not the one that TensorFlow runs; loops stay whole."""
    assert seen["optimised"] == [True, False, True]


def test_bodies_of_loops_are_graphs(seen: Any) -> None:
    """`function_def_to_graph_def`: without it the memory of a loop's body is unknown."""
    assert seen["body"] == [True, True]


def test_xla_reports_its_buffers(seen: Any) -> None:
    """`hlo_pb2`, `experimental_get_compiler_ir`: without them steps under XLA cannot be estimated."""
    assert seen["buffers"] == [True, True]


def test_the_maker_of_kernels_is_known(seen: Any) -> None:
    """`IsMklEnabled`: without it formulas are used for kernels of oneDNN, for which they do not hold."""
    assert seen["maker"] == "TensorFlow"


def test_kernels_report_their_scratch(seen: Any) -> None:
    """`RunMetadata`, `peak_bytes`: without them a probe of a kernel measures nothing."""
    assert seen["scratch"] == [True, True]


def _trace_operations() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.private.tensorflow.graph_defs import (
        LOOPS,
        add_control_input,
        each_operation,
        is_in_loop,
        loops_begin_few_turns,
    )

    seen: list[Any] = []

    def products(x: Any) -> Any:
        before = tf.raw_ops.Empty(shape=[4], dtype=tf.float32, init=False)
        outside = tf.matmul(x, x)
        add_control_input(outside.op, before.op)
        (inside,) = tf.while_loop(lambda y: tf.reduce_sum(y) < 100.0, lambda y: [tf.matmul(y, y)], [outside])
        return inside

    spec = tf.TensorSpec((2, 2))
    with each_operation(seen.append):
        concrete = tf.function(products, autograph=False).get_concrete_function(spec)
    tf.function(tf.exp).get_concrete_function(spec)

    def way_back(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = products(x)
        return tape.gradient(y, x)

    with loops_begin_few_turns(3):
        both = tf.function(way_back, autograph=False).get_concrete_function(spec)
    loops = [one for one in both.graph.get_operations() if one.type in LOOPS]
    outside = next(one for one in concrete.graph.get_operations() if one.type == "MatMul")
    return {
        "products": [is_in_loop(operation) for operation in seen if operation.type == "MatMul"],
        "kinds": sorted({operation.type for operation in seen} & {"Exp", "While", "StatelessWhile"}),
        "waits for": [operation.type for operation in outside.control_inputs],
        "value": float(tf.reduce_sum(concrete(2.0 * tf.eye(2)))),
        "turns": [one.get_attr("parallel_iterations") for one in loops],
        "same": bool(tf.reduce_all(both(2.0 * tf.eye(2)) == tf.function(way_back)(2.0 * tf.eye(2)))),
    }


def test_operations_are_handed_over_as_they_are_traced() -> None:
    """`_create_op_internal`, `_add_control_input`, `WhileBodyFuncGraph`: without them nothing is checked."""
    seen = run_limited(_trace_operations, None)
    assert seen["products"] == [False, True]
    assert seen["kinds"] in (["StatelessWhile"], ["While"])
    assert seen["waits for"] == ["Empty"]
    assert seen["value"] == 512.0


def test_loops_begin_as_many_turns_as_they_are_told() -> None:
    """`attrs`, `parallel_iterations`: without them loops that run out are stuck for minutes."""
    seen = run_limited(_trace_operations, None)
    assert seen["turns"] == [3, 3]
    assert seen["same"]
