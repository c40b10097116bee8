"""Facts behind `memfit.private.tensorflow.function_graphs`: what breaks if a private name goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import gc
    import sys
    import weakref

    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.private.keras.trainer import uncompile
    from memfit.private.tensorflow.function_graphs import (
        count_closures,
        count_gradients,
        draws_numbers,
        each_closure,
        each_graph,
        enclosed,
        gradients_go_with_their_graphs,
        graph_in_force,
        is_call_of_function,
        is_graph,
        is_python_value,
        is_tracing,
        kinds_of_graphs,
        let_closures_go_with_their_graph,
        let_gradients_go_with_their_graphs,
        signatures_of,
        stack,
    )
    from memfit.private.tensorflow.variables import variables_in

    seen: dict[str, Any] = {}
    noted: dict[str, list[Any]] = {"graphs": [], "closures": [], "frames": [], "stacks": []}

    def note_graph(graph: Any) -> None:
        noted["graphs"].append(weakref.ref(graph))
        frame = sys._getframe(1)
        while frame is not None:
            noted["frames"].append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back  # type: ignore[assignment]

    def note_stack() -> None:
        lines = [(one.filename, one.name) for one in stack()]
        noted["stacks"].append((lines, graph_in_force() is not None))

    with each_graph(note_graph), each_closure(noted["closures"].append):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))

        @tf.function
        def traced(scale: Any, rows: Any) -> Any:
            note_stack()
            called = tf.numpy_function(lambda: np.float32(1.0), [], tf.float32)
            return called * scale * tf.reduce_sum(rows)

        for scale in (1, 2):
            traced(scale, tf.ones((scale,)))
        note_stack()
    frames = noted["frames"]
    seen["frames"] = [
        any(is_call_of_function(*one) for one in frames),
        any(is_tracing(*one) for one in frames),
    ]
    seen["mapped"] = any(name == "traced" and file == __file__ for file, name in noted["stacks"][0][0])
    seen["in graph"] = [in_graph for _, in_graph in noted["stacks"]]
    seen["closures"] = [len(noted["closures"]), count_closures()]
    first, second = signatures_of(traced)
    seen["signatures"] = [
        [is_python_value(one["scale"]), is_python_value(one["rows"])] for one in (first, second)
    ]
    seen["enclosed"] = [
        enclosed(note_graph, "noted") is noted,
        enclosed(note_graph, "other"),
        enclosed(len, ""),
    ]

    graphs = [one() for one in noted["graphs"] if one() is not None]
    seen["kinds"] = {type(graph) for graph in graphs} <= set(kinds_of_graphs())
    seen["is graph"] = [all(map(is_graph, graphs)), is_graph(model)]
    seen["variables"] = any(variables_in(graph) for graph in graphs)
    seen["draws"] = [
        draws_numbers(tf.function(function).get_concrete_function().graph)
        for function in (lambda: tf.random.normal(()), lambda: tf.zeros(()))
    ]

    seen["closures let go"] = len([graph for graph in graphs if let_closures_go_with_their_graph(graph)])
    gradients = count_gradients()
    done = let_gradients_go_with_their_graphs(lambda graph: True)
    seen["gradients"] = [done > 0, count_gradients() == gradients]
    seen["twice"] = let_gradients_go_with_their_graphs(lambda graph: True)
    gradients_of_before = count_gradients()
    with gradients_go_with_their_graphs():
        short = tf.function(tf.custom_gradient(lambda x: (x, lambda upstream: upstream)))
        short.get_concrete_function(tf.TensorSpec(()))
    seen["short"] = [count_gradients() - gradients_of_before]
    del short
    gc.collect()
    seen["short"].append(count_gradients() - gradients_of_before)
    uncompile(model)
    model.train_function = None
    noted.clear()
    del graphs, traced, first, second, model
    gc.collect()
    seen["gone"] = [count_gradients() - gradients + done, count_closures()]
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-function-graphs", lambda: run_limited(_use_them, None))


def test_frames_say_what_a_graph_belongs_to(seen: Any) -> None:
    """`Function._call`, `_maybe_define_function`: without them graphs belong to no line of the user's."""
    assert seen["frames"] == [True, True]


def test_autograph_is_seen_through(seen: Any) -> None:
    """`tf_stack.extract_stack`: without it lines inside a tf.function are those of a copy of AutoGraph's."""
    assert seen["mapped"]


def test_the_graph_being_traced_is_known(seen: Any) -> None:
    """`ops.get_default_graph`: without it constants in graphs cannot be told from eager tensors."""
    assert seen["in graph"] == [True, True, False]


def test_closures_are_noticed_and_counted(seen: Any) -> None:
    """`script_ops._py_funcs`: without it functions of Python's that TensorFlow holds are missed."""
    assert seen["closures"][0] == seen["closures"][1] == 2


def test_traces_say_what_differs(seen: Any) -> None:
    """`_list_all_concrete_functions`, `Literal`: without them a retrace has no reason."""
    assert seen["signatures"] == [[True, False], [True, False]]


def test_closures_are_looked_into(seen: Any) -> None:
    """`__closure__`: without it the graph that a custom gradient pins is unknown."""
    assert seen["enclosed"] == [True, None, None]


def test_graphs_know_their_variables_and_operations(seen: Any) -> None:
    """`FuncGraph`: without it nothing of a model can be released."""
    assert seen["is graph"] == [True, False]
    assert seen["kinds"]
    assert seen["variables"]
    assert seen["draws"] == [True, False]


def test_gradients_and_closures_go_with_their_graphs(seen: Any) -> None:
    """`_gradient_registry`, `_py_funcs_used_in_graph`: without them a released model stays for ever."""
    assert seen["gradients"] == [True, True]
    assert seen["twice"] == 0
    assert seen["closures let go"] == 2
    assert seen["gone"] == [0, 0]
    assert seen["short"] == [1, 0]
