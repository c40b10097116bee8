"""Every private name that watching and releasing use: what it must do, and what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _has_model_at_hand(model: Any) -> list[bool]:
    from memfit.diagnoses.watches import internals

    functions = (lambda: model, model.call, len)
    return [internals.model_used_by(function) is model for function in functions]


def _use_them() -> dict[str, Any]:
    import gc
    import sys
    import weakref

    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.diagnoses.watches import internals

    seen: dict[str, Any] = {}
    noted: dict[str, list[Any]] = {"graphs": [], "closures": [], "models": [], "arrays": [], "frames": []}

    def note_graph(graph: Any) -> None:
        noted["graphs"].append(weakref.ref(graph))
        frame = sys._getframe(1)
        while frame is not None:
            noted["frames"].append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back  # type: ignore[assignment]

    def around(array: Any, call: Any) -> Any:
        stack = [(one.filename, one.name) for one in internals.stack()]
        noted["arrays"].append([array.nbytes, stack, internals.graph_in_force() is not None])
        return call()

    large = np.ones((1 << 20,), "uint8")
    with (
        internals.each_graph(note_graph),
        internals.each_closure(noted["closures"].append),
        internals.each_model(noted["models"].append),
        internals.each_array(1 << 20, around),
    ):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
        functional = keras.Model(model.inputs, model.outputs)
        tf.data.Dataset.from_tensor_slices(large)

        @tf.function
        def traced(scale: Any, rows: Any) -> Any:
            called = tf.numpy_function(lambda: np.float32(1.0), [], tf.float32)
            return called * scale * tf.reduce_sum(rows) + tf.cast(tf.constant(large)[0], tf.float32)

        for scale in (1, 2):
            traced(scale, tf.ones((scale,)))
    seen["models"] = [any(one is two for one in noted["models"]) for two in (model, functional)]
    seen["used"] = _has_model_at_hand(model)
    frames = noted["frames"]
    seen["frames"] = [
        any(internals.is_call_of_function(*one) for one in frames),
        any(internals.is_tracing(*one) for one in frames),
        any(internals.is_call_of_model(one[0]) for one in frames),
        any(internals.is_of_keras(one[0]) for one in frames),
    ]
    seen["arrays"] = [
        [bytes_, any(internals.is_dataset_of_arrays(*one) for one in stack), in_graph]
        for bytes_, stack, in_graph in noted["arrays"]
    ]
    seen["mapped"] = any(name == "traced" and file == __file__ for file, name in noted["arrays"][1][1])
    seen["closures"] = [len(noted["closures"]), internals.count_closures()]
    first, second = internals.signatures_of(traced)
    seen["signatures"] = [
        [internals.is_python_value(one["scale"]), internals.is_python_value(one["rows"])]
        for one in (first, second)
    ]
    seen["bytes"] = [internals.bytes_of(tf.ones((3, 2))), internals.bytes_of(tf.constant(["text"]))]

    graphs = [one() for one in noted["graphs"] if one() is not None]
    seen["kinds"] = {type(graph) for graph in graphs} <= set(internals.kinds_of_graphs())
    seen["is graph"] = [all(map(internals.is_graph, graphs)), internals.is_graph(model)]
    kernel = model.layers[0].kernel.value
    uses = [graph for graph in graphs if kernel is not None and internals.variables_in(graph)]
    seen["variables"] = len(uses) > 0
    seen["draws"] = [
        internals.draws_numbers(tf.function(function).get_concrete_function().graph)
        for function in (lambda: tf.random.normal(()), lambda: tf.zeros(()))
    ]

    own = len([graph for graph in graphs if internals.let_closures_go_with_their_graph(graph)])
    seen["closures let go"] = own
    gradients = internals.count_gradients()
    done = internals.let_gradients_go_with_their_graphs(lambda graph: True)
    seen["gradients"] = [done > 0, internals.count_gradients() == gradients]
    seen["twice"] = internals.let_gradients_go_with_their_graphs(lambda graph: True)
    internals.uncompile(model)
    seen["compiled"] = [model.compiled, model.optimizer is None]
    model.train_function = None
    noted.clear()
    del graphs, uses, traced, first, second, kernel, model, functional
    gc.collect()
    seen["gone"] = [internals.count_gradients() - gradients + done, internals.count_closures()]
    internals.forget_kernels()
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return run_limited(_use_them, None)


def test_models_are_noticed_when_they_are_made(seen: Any) -> None:
    """`keras.Model.__new__`: without it a leaked model is named by the line that trains it."""
    assert seen["models"] == [True, True]


def test_functions_have_their_model_at_hand(seen: Any) -> None:
    """Closures and `self`: without them a model that a loop of one's own trains is named by that loop."""
    assert seen["used"] == [True, True, False]


def test_frames_say_what_a_graph_belongs_to(seen: Any) -> None:
    """`Function._call`, `_maybe_define_function`, Keras' trainer.py: without them graphs belong to nobody."""
    assert seen["frames"] == [True, True, True, True]


def test_arrays_are_noticed_when_they_become_tensors(seen: Any) -> None:
    """`convert_to_eager_tensor`, `make_tensor_proto`: without them arrays are missed."""
    assert seen["arrays"][0] == [1 << 20, True, False]
    assert [1 << 20, False, True] in seen["arrays"]


def test_autograph_is_seen_through(seen: Any) -> None:
    """`tf_stack.extract_stack`: without it lines inside a tf.function are those of a copy of AutoGraph's."""
    assert seen["mapped"]


def test_closures_are_noticed_and_counted(seen: Any) -> None:
    """`script_ops._py_funcs`: without it functions of Python's that TensorFlow holds are missed."""
    assert seen["closures"][0] == seen["closures"][1] == 2


def test_traces_say_what_differs(seen: Any) -> None:
    """`_list_all_concrete_functions`, `Literal`: without them a retrace has no reason."""
    assert seen["signatures"] == [[True, False], [True, False]]


def test_tensors_have_bytes(seen: Any) -> None:
    """`_num_elements`: without it tensors are counted and not weighed."""
    assert seen["bytes"] == [24, 0]


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


def test_a_model_can_be_taken_back_to_before_compile(seen: Any) -> None:
    """`_compile_config`, `DotNotTrackScope`: without them the optimizer's slots stay with the model."""
    assert seen["compiled"] == [False, True]
