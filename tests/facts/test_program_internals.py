"""Every private name that reading a program relies on: what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.devices import device_memory
    from memfit.programs import internals

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
    called = [internals.called_graph(operation) for operation in shown.graph.get_operations()]
    graphs = [graph for graph in called if graph is not None]
    seen["called"] = [[op.type for op in graph.get_operations()] for graph in graphs]
    inside = [frame.filename == __file__ for frame in tracebacks[0]]
    seen["tracebacks"] = [len(set(tracebacks)), inside[-1], any(inside), len(inside) > 5]

    concrete = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((None, 4)))
    graph_def = concrete.graph.as_graph_def()
    seen["handles"] = [v is weight for v in internals.handles_by_name(concrete.graph).values()]
    for node in graph_def.node:
        if "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = False
    keep = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    optimised = internals.optimised(graph_def, keep)
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
    inner, returned = internals.body_graph_def(body, shapes, optimised.library)
    seen["body"] = ["MatMul" in {node.op for node in inner.node}, len(returned) == len(shapes)]

    before = device_memory().current_bytes
    with internals.variables_without_memory():
        large = tf.Variable(lambda: tf.zeros((1024, 1024)), shape=(1024, 1024), dtype=tf.float32)
    traced = tf.function(lambda: large + 1.0, autograph=False).get_concrete_function()
    seen["without memory"] = device_memory().current_bytes - before < 1 << 20
    seen["shape"] = traced.outputs[0].shape.as_list()

    compiled = tf.function(lambda x: tf.reduce_sum(tf.linalg.matmul(x, x) ** 2), jit_compile=True)
    temporary, outputs = internals.buffers_of(compiled, [tf.TensorSpec((256, 256))])
    seen["buffers"] = [sum(temporary) >= 256 * 256 * 4, sum(outputs) >= 4]

    seen["maker"] = internals.maker_of_kernels()
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
    scratch = [internals.scratch_of_run(alone, name, {}, threads=2, runs=1) for name in ("filter", "product")]
    seen["scratch"] = [scratch[0] > 1 << 20, scratch[1] == 0]
    return seen


def test_each_does_what_memfit_needs() -> None:
    seen = run_limited(_use_them, "2GiB")
    assert seen == {
        # Which line an operation comes from, outermost first, and that the same stacks are equal: without
        # that, lines are slow to find.
        "tracebacks": [2, False, True, True],
        # What a function does, with tracebacks: without it, steps in micro-batches have no lines.
        "called": [["Placeholder", "Tanh", "Identity"]],
        # Which variable a traced graph reads where: without it, weights have no bytes.
        "handles": [True],
        # The graph as TensorFlow will run it, with loops left whole.
        "optimised": [True, False, True],
        # What a loop does each time round.
        "body": [True, True],
        # Slots of an optimizer that nobody has built: traced, not allocated.
        "without memory": True,
        "shape": [1024, 1024],
        # What XLA has laid out: its temporary memory and its outputs.
        "buffers": [True, True],
        # Whether the formulas for kernels hold; with oneDNN or on a GPU they do not, and a probe is needed.
        "maker": "TensorFlow",
        # What a kernel was seen to allocate besides its outputs: all that a probe measures.
        "scratch": [True, True],
    }
