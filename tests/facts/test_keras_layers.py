"""Facts behind `memfit.private.keras.layers`: what breaks if a private name of Keras goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    _graph_of_layers(seen)
    _layers_inside(seen)
    _calls(seen)
    _state_of_calls(seen)
    _frames(seen)
    return seen


def _graph_of_layers(seen: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.model.calls import calls_of
    from memfit.private.keras.layers import (
        built_shapes,
        functional_of,
        instead_of_running_through,
        nodes_in_order,
        owners_of_losses,
    )

    inputs = keras.Input((3,))
    adding = layers.Dense(2, activity_regularizer="l2")
    model = keras.Model(inputs, layers.Add()([adding(inputs), layers.Dense(2)(inputs)]))
    sequential = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    seen["functional"] = functional_of(model) is model
    seen["sequential"] = [call.name for call in calls_of(functional_of(sequential))]
    seen["unbuilt"] = functional_of(keras.Sequential([layers.Dense(2)]))
    seen["calls"] = [type(call.operation).__name__ for call in calls_of(model)]
    seen["nodes"] = [type(node.operation).__name__ for node in nodes_in_order(model)]
    seen["shapes"] = tuple(built_shapes(sequential) or ())

    with instead_of_running_through(model, lambda flat, wrap: tf.zeros((1, 2))):
        seen["instead"] = float(tf.reduce_sum(model(tf.ones((1, 3)))))
        seen["symbolic"] = tuple(model(keras.Input((3,))).shape)
    seen["overridden after"] = "_run_through_graph" in vars(model)

    with keras.StatelessScope(collect_losses=True) as scope:
        adding(tf.ones((1, 3)))
    owners = owners_of_losses([model.layers[2], adding], scope.losses)
    seen["owner"] = [owner is adding for owner in owners]


def _layers_inside(seen: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.private.keras.layers import (
        all_layers,
        comes_from_keras,
        is_cast_by_layers,
        layers_and_self,
        layers_in,
        prepares_data,
        tracker_of,
    )

    class Own(layers.Layer):  # type: ignore[misc]
        pass

    model = keras.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5)])
    seen["layers"] = [type(layer).__name__ for layer in all_layers(model)]
    seen["and self"] = [layers_and_self(model) == [model, *all_layers(model)], layers_and_self(len)]
    attention = layers.MultiHeadAttention(1, 2, dropout=0.1)
    attention(tf.ones((1, 2, 3)), tf.ones((1, 2, 3)))
    seen["held"] = sorted(type(layer).__name__ for layer in layers_in(attention))
    seen["keras"] = [comes_from_keras(thing) for thing in (layers.Dense, keras.ops.relu, Own)]
    kinds = (layers.Rescaling(1.0), layers.RandomFlip(), layers.Dense(3))
    seen["data"] = [prepares_data(layer) for layer in kinds]
    norm, dense = layers.BatchNormalization(), layers.Dense(3)
    norm.build((None, 3))
    dense.build((None, 3))
    seen["cast"] = [is_cast_by_layers(variable) for variable in (dense.kernel, norm.gamma)]
    ids = [one for tracked in tracker_of(dense).stored_ids.values() for one in tracked]
    seen["tracker"] = [id(dense.kernel) in ids, tracker_of(Own) is None]


def _calls(seen: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf

    from memfit.private.keras.layers import called_layers, each_call, each_layer_call, inputs_of, makers_of

    calls: list[str] = []

    def around(layer: Any, call: Any, given: Any) -> Any:
        calls.append(type(layer).__name__)
        return call()

    sequential = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with each_layer_call(around):
        sequential(tf.ones((1, 3)))
    seen["each layer"] = list(calls)

    dense = [keras.layers.Dense(3, name=f"dense_{number}") for number in range(4)]
    inner = keras.Sequential([keras.Input((3,)), dense[0], dense[1]], name="inner")
    outer = keras.Sequential([keras.Input((3,)), dense[2], inner, dense[3], dense[2]])
    outer(tf.ones((1, 3)))  # so that names of scopes are taken
    with called_layers() as called:
        tf.function(outer, autograph=False).get_concrete_function(tf.TensorSpec((1, 3)))
    seen["called"] = list(called.by_scope.values())
    seen["of variables"] = [called.by_variable[id(layer.kernel.value)] for layer in dense]

    inputs = keras.Input((3,))
    between = keras.Model(inputs, keras.ops.exp(dense[0](inputs) * 2.0) + dense[1](inputs))
    calls.clear()
    with each_call(around):
        between(tf.ones((1, 3)))
    seen["each call"] = sorted(calls)
    seen["makers"] = sorted(layer.name for layer in makers_of(between.outputs))
    last = between.outputs[0]._keras_history.operation
    seen["inputs"] = [tuple(tensor.shape) for tensor in inputs_of(last)]


def _state_of_calls(seen: dict[str, Any]) -> None:
    import tensorflow as tf
    from keras import layers

    from memfit.private.keras.layers import CallState, mask_of, with_mask

    class Looks(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.state = CallState()
            return layers.Dropout(0.5)(x)

    looks = Looks()
    looks(tf.ones((1, 3)), training=True)
    with looks.state.again():
        dropped = layers.Dropout(0.999, seed=1)(tf.ones((1, 100)))
    seen["training again"] = float(tf.reduce_sum(dropped)) != 100.0
    seen["not outside"] = float(tf.reduce_sum(layers.Dropout(0.999)(tf.ones((1, 100))))) == 100.0

    masked = layers.Embedding(4, 2, mask_zero=True)(tf.constant([[0, 1]]))
    seen["mask"] = mask_of(masked).numpy().tolist()
    seen["no mask"] = mask_of(tf.ones(1)) is None
    seen["with mask"] = mask_of(with_mask(tf.ones((1, 2)), tf.constant([[True, False]]))) is not None


def _frames(seen: dict[str, Any]) -> None:
    import sys

    import keras
    import numpy as np

    from memfit.private.keras.layers import each_model, is_call_of_model, is_of_keras
    from memfit.private.tensorflow.function_graphs import each_graph

    models: list[Any] = []
    files: set[str] = set()

    def note_graph(graph: Any) -> None:
        frame = sys._getframe(1)
        while frame is not None:
            files.add(frame.f_code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]

    with each_graph(note_graph), each_model(models.append):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
        functional = keras.Model(model.inputs, model.outputs)
    seen["models"] = [any(one is two for one in models) for two in (model, functional)]
    seen["frames"] = [any(map(is_call_of_model, files)), any(map(is_of_keras, files))]
    seen["own file"] = [is_call_of_model(__file__), is_of_keras(__file__)]
    seen["used"] = _has_model_at_hand(model)


def _has_model_at_hand(model: Any) -> list[bool]:
    from memfit.private.keras.layers import model_used_by

    functions = (lambda: model, model.call, len)
    return [model_used_by(function) is model for function in functions]


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("keras-layers", lambda: run_limited(_use_them, None))


def test_calls_of_a_model_are_known_in_order(seen: Any) -> None:
    """`Functional`, `Sequential._functional`, `_nodes_by_depth`: without them nothing can be cut."""
    assert seen["functional"]
    assert seen["sequential"] == ["dense_2"]
    assert seen["unbuilt"] is None
    assert seen["calls"] == seen["nodes"] == ["Dense", "Dense", "Add"]


def test_a_graph_of_layers_is_run_in_our_own_way(seen: Any) -> None:
    """`_run_through_graph`: without it segments cannot run; symbolic inputs are Keras' own business."""
    assert seen["instead"] == 0.0
    assert seen["symbolic"] == [None, 2]
    assert not seen["overridden after"]


def test_losses_come_back_to_the_layer_that_added_them(seen: Any) -> None:
    """`_loss_ids`: without it a loss in a segment belongs to another layer."""
    assert seen["owner"] == [True]


def test_a_built_model_knows_its_shapes(seen: Any) -> None:
    """`_build_shapes_dict`: without it a subclassed model needs data to be estimated."""
    assert seen["shapes"] == [None, 3]


def test_nested_layers_are_found(seen: Any) -> None:
    """`_flatten_layers`: without it BatchNorm goes unnoticed."""
    assert "BatchNormalization" in seen["layers"]
    assert seen["and self"] == [True, []]
    assert seen["held"] == ["Dropout", "EinsumDense", "EinsumDense", "EinsumDense", "EinsumDense", "Softmax"]


def test_layers_of_keras_are_told_from_others(seen: Any) -> None:
    """`keras.src`: without it every layer has to be tried, and layers for data lose their float32."""
    assert seen["keras"] == [True, True, False]
    assert seen["data"] == [True, True, False]


def test_variables_that_are_never_cast_are_known(seen: Any) -> None:
    """`_autocast`: without it the bytes of casts are estimated for variables that have none."""
    assert seen["cast"] == [True, False]


def test_what_tracks_variables_is_found(seen: Any) -> None:
    """`_tracker`: without it a snapshot does not bring back which variables a layer has."""
    assert seen["tracker"] == [True, True]


def test_each_call_of_a_layer_is_seen(seen: Any) -> None:
    """`Layer.__call__`, `Operation.__call__`: without them it is unknown what overflows between layers."""
    assert seen["each layer"] == ["Sequential", "Dense"]
    assert seen["each call"] == ["Add", "Dense", "Dense", "Exp", "Functional", "Multiply"]


def test_operations_and_variables_belong_to_layers(seen: Any) -> None:
    """`Layer.__call__`: without it operations are named by scopes, whatever numbers those have got."""
    expected = ["", "dense_2", "inner", "inner/dense_0", "inner/dense_1", "dense_3", "dense_2"]
    assert seen["called"] == expected
    assert seen["of variables"] == ["inner/dense_0", "inner/dense_1", "dense_2", "dense_3"]


def test_tensors_know_the_layers_that_made_them(seen: Any) -> None:
    """`_keras_history`, `_inbound_nodes`: without them outputs of the model may be made in 16 bits."""
    assert seen["makers"] == ["dense_0", "dense_1"]
    assert seen["inputs"] == [[None, 3], [None, 3]]


def test_computing_again_sees_training_as_it_was(seen: Any) -> None:
    """`current_call_ctx`, `autocast_scope`: without them a segment is computed again without Dropout."""
    assert seen["training again"]
    assert seen["not outside"]


def test_masks_are_read_and_attached(seen: Any) -> None:
    """`_keras_mask`: without it masked losses are weighed wrongly, and segments drop masks."""
    assert seen["mask"] == [[False, True]]
    assert seen["no mask"]
    assert seen["with mask"]


def test_models_are_noticed_when_they_are_made(seen: Any) -> None:
    """`keras.Model.__new__`: without it a leaked model is named by the line that trains it."""
    assert seen["models"] == [True, True]


def test_frames_of_keras_are_known(seen: Any) -> None:
    """Keras' trainer.py: without it graphs of a model belong to no line of the user's."""
    assert seen["frames"] == [True, True]
    assert seen["own file"] == [False, False]


def test_functions_have_their_model_at_hand(seen: Any) -> None:
    """Closures and `self`: without them a model that a loop of one's own trains is named by that loop."""
    assert seen["used"] == [True, True, False]
