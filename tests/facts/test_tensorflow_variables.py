"""Facts behind `memfit.private.tensorflow.variables`: what breaks if a private name of TensorFlow goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    _values(seen)
    _graphs(seen)
    return seen


def _values(seen: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf

    from memfit.machine import device_memory
    from memfit.private.tensorflow.variables import (
        backing_variable,
        is_recorded,
        unrecorded,
        variables_without_memory,
    )

    dense = keras.layers.Dense(3)
    dense.build((None, 2))
    variable = tf.Variable(2.0)
    seen["backing"] = isinstance(backing_variable(dense.kernel), tf.Variable)
    seen["its own"] = backing_variable(variable) is variable

    with tf.GradientTape() as tape:
        seen["recorded"] = is_recorded()
        with unrecorded():
            product = variable * 3.0
    seen["gradient"] = tape.gradient(product, variable)
    seen["recorded outside"] = is_recorded()

    before = device_memory().current_bytes
    with variables_without_memory():
        large = tf.Variable(lambda: tf.zeros((1024, 1024)), shape=(1024, 1024), dtype=tf.float32)
    traced = tf.function(lambda: large + 1.0, autograph=False).get_concrete_function()
    seen["without memory"] = device_memory().current_bytes - before < 1 << 20
    seen["shape"] = traced.outputs[0].shape.as_list()


def _graphs(seen: dict[str, Any]) -> None:
    import gc

    import tensorflow as tf

    from memfit.private.tensorflow.variables import handles_by_name, is_compiled_by_xla, variables_in

    def compiled() -> Any:
        return tf.constant(is_compiled_by_xla())

    traces = [tf.function(compiled, jit_compile=jit, autograph=False) for jit in (True, False)]
    inside = tf.function(traces[0], autograph=False)
    seen["for xla"] = [bool(trace()) for trace in (*traces, inside)]

    weights = [tf.Variable(tf.ones((4, 4)))]
    graph = (
        tf.function(lambda x: x @ weights[0], autograph=False).get_concrete_function(tf.ones((1, 4))).graph
    )
    seen["handles"] = [v is weights[0] for v in handles_by_name(graph).values()]
    seen["variables"] = [v is weights[0] for v in variables_in(graph) or ()]
    weights.clear()
    gc.collect()
    seen["variables gone"] = variables_in(graph)


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-variables", lambda: run_limited(_use_them, "2GiB"))


def test_keras_variables_have_a_tf_variable(seen: Any) -> None:
    """`_value`: without it there is nothing to commit to."""
    assert seen["backing"]
    assert seen["its own"]


def test_the_forward_pass_can_be_kept_off_the_tape(seen: Any) -> None:
    """`record.stop_recording`, `could_possibly_record`: without them a segment's activations stay."""
    assert seen["recorded"]
    assert seen["gradient"] is None
    assert not seen["recorded outside"]


def test_xla_is_noticed_while_tracing(seen: Any) -> None:
    """`GraphOrParentsInXlaContext`: XLA needs other ties between gradients; without it nothing is saved."""
    assert seen["for xla"] == [True, False, True]


def test_variables_are_traced_without_memory(seen: Any) -> None:
    """`UninitializedVariable`: without it slots of an unbuilt optimizer are allocated for an estimate."""
    assert seen["without memory"]
    assert seen["shape"] == [1024, 1024]


def test_placeholders_are_matched_with_variables(seen: Any) -> None:
    """`graph.captures`, `handle`: without them weights have no bytes in an estimate."""
    assert seen["handles"] == [True]


def test_graphs_know_their_variables(seen: Any) -> None:
    """`FuncGraph.variables`: without it nothing of a model can be released."""
    assert seen["variables"] == [True]
    assert seen["variables gone"] is None
