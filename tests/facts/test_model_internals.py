"""Every private name that running a model call by call relies on: what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.models import internals
    from memfit.models.calls import calls_of

    seen: dict[str, Any] = {}
    inputs = keras.Input((3,))
    adding = layers.Dense(2, activity_regularizer="l2")
    model = keras.Model(inputs, layers.Add()([adding(inputs), layers.Dense(2)(inputs)]))
    sequential = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    seen["functional"] = internals.functional_of(model) is model
    seen["sequential"] = [call.name for call in calls_of(internals.functional_of(sequential))]
    seen["unbuilt"] = internals.functional_of(keras.Sequential([layers.Dense(2)]))
    seen["calls"] = [type(call.operation).__name__ for call in calls_of(model)]

    with internals.instead_of_running_through(model, lambda flat, wrap: tf.zeros((1, 2))):
        seen["instead"] = float(tf.reduce_sum(model(tf.ones((1, 3)))))
        seen["symbolic"] = tuple(model(keras.Input((3,))).shape)
    seen["as before"] = "_run_through_graph" in vars(model)

    with keras.StatelessScope(collect_losses=True) as scope:
        seen["scope"] = internals.scope_in_force() is scope
        adding(tf.ones((1, 3)))
    owners = internals.owners_of_losses([model.layers[2], adding], scope.losses)
    seen["owner"] = [owner is adding for owner in owners]

    class Looks(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.state = internals.CallState()
            return layers.Dropout(0.5)(x)

    looks = Looks()
    looks(tf.ones((1, 3)), training=True)
    with looks.state.again():
        dropped = layers.Dropout(0.999, seed=1)(tf.ones((1, 100)))
    seen["training again"] = float(tf.reduce_sum(dropped)) != 100.0
    seen["not outside"] = float(tf.reduce_sum(layers.Dropout(0.999)(tf.ones((1, 100))))) == 100.0

    variable = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        seen["recorded"] = internals.is_recorded()
        with internals.unrecorded():
            product = variable * 3.0
    seen["gradient"] = tape.gradient(product, variable)
    seen["nobody records"] = internals.is_recorded()

    masked = internals.with_mask(tf.ones((1, 2)), tf.constant([[True, False]]))
    seen["mask"] = internals.mask_of(masked) is not None
    seen["shapes"] = tuple(internals.built_shapes(sequential) or ())

    keras.backend.clear_session()
    with internals.borrowed_global_seed():
        keras.random.uniform((1,))
    with keras.StatelessScope(), internals.global_seed_outside_scopes():
        keras.random.uniform((1,))
    seen["seed for good"] = keras.random.uniform((1,)).shape == (1,)

    calls: list[str] = []

    def around(layer: Any, call: Any, given: Any) -> Any:
        calls.append(type(layer).__name__)
        return call()

    with internals.each_layer_call(around):
        sequential(tf.ones((1, 3)))
    seen["each"] = calls

    dense = [keras.layers.Dense(3, name=f"dense_{number}") for number in range(4)]
    inner = keras.Sequential([keras.Input((3,)), dense[0], dense[1]], name="inner")
    outer = keras.Sequential([keras.Input((3,)), dense[2], inner, dense[3], dense[2]])
    outer(tf.ones((1, 3)))  # so that names of scopes are taken
    with internals.called_layers() as called:
        tf.function(outer, autograph=False).get_concrete_function(tf.TensorSpec((1, 3)))
    seen["called"] = list(called.by_scope.values())
    seen["of variables"] = [called.by_variable[id(layer.kernel.value)] for layer in dense]

    inputs = keras.Input((3,))
    attention = layers.MultiHeadAttention(1, 2, dropout=0.1, name="attention")
    between = keras.Model(inputs, keras.ops.exp(dense[0](inputs) * 2.0) + dense[1](inputs))
    calls = []
    with internals.each_call(around):
        between(tf.ones((1, 3)))
    seen["with operations"] = sorted(calls)
    seen["makers"] = sorted(layer.name for layer in internals.makers_of(between.outputs))
    last = between.outputs[0]._keras_history.operation
    seen["taken"] = [tuple(tensor.shape) for tensor in internals.inputs_of(last)]
    attention(tf.ones((1, 2, 3)), tf.ones((1, 2, 3)))
    seen["held"] = sorted(type(layer).__name__ for layer in internals.layers_in(attention))
    seen["keras"] = [internals.comes_from_keras(thing) for thing in (layers.Dense, keras.ops.relu, Looks)]
    seen["data"] = [
        internals.prepares_data(layer) for layer in (layers.Rescaling(1.0), layers.RandomFlip(), dense[0])
    ]
    norm = layers.BatchNormalization()
    norm.build((None, 3))
    seen["cast"] = [internals.is_cast_by_layers(variable) for variable in (dense[0].kernel, norm.gamma)]

    between.compile("sgd", "mse")
    first = between.optimizer
    second = keras.optimizers.LossScaleOptimizer(first)
    seen["compiled with"] = internals.compiled_with(between) is first
    internals.put_optimizer(between, second)
    seen["put"] = between.optimizer is second and internals.compiled_with(between) is second
    seen["saved"] = between.get_compile_config()["optimizer"]["class_name"]
    loss = internals.loss_in_training(between, None, tf.zeros((1, 3)), tf.ones((1, 3)) * 2, None)
    seen["loss"] = float(loss)
    between.dtype_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    between.compile(first, "mse")
    seen["scaled by keras"] = between.optimizer.inner_optimizer is internals.compiled_with(between)

    def compiled() -> Any:
        return tf.constant(internals.is_compiled_by_xla())

    traces = [tf.function(compiled, jit_compile=jit, autograph=False) for jit in (True, False)]
    inside = tf.function(traces[0], autograph=False)
    seen["for xla"] = [bool(trace()) for trace in (*traces, inside)]

    numbers = tf.data.Dataset.range(10)
    pipelines = (
        numbers.batch(4).map(lambda x: x).prefetch(1),
        numbers.batch(4, num_parallel_calls=2),
        numbers,
    )
    seen["batches"] = [internals.batch_size_of(dataset) for dataset in pipelines]
    return seen


def test_each_does_what_memfit_needs() -> None:
    seen = run_limited(_use_them, None)
    assert seen == {
        # Which calls a model makes, and in which order: without it, nothing can be cut.
        "functional": True,
        "sequential": ["dense_2"],
        "unbuilt": None,
        "calls": ["Dense", "Dense", "Add"],
        # Running a graph of layers in our own way, and leaving Keras to its own with symbolic inputs.
        "instead": 0.0,
        "symbolic": [None, 2],
        "as before": False,
        # Losses that layers add must come back to the layer that added them.
        "scope": True,
        "owner": [True],
        # Computing again must see `training` as it was, although the call is over.
        "training again": True,
        "not outside": True,
        # The forward pass of a segment must leave nothing on the tape.
        "recorded": True,
        "gradient": None,
        "nobody records": False,
        "mask": True,
        "shapes": [None, 3],
        # Draws without a seed need a generator that outlives the scope.
        "seed for good": True,
        "each": ["Sequential", "Dense"],
        # Which layer an operation and a variable belong to, whatever numbers their scopes have got.
        "called": ["", "dense_2", "inner", "inner/dense_0", "inner/dense_1", "dense_3", "dense_2"],
        "of variables": ["inner/dense_0", "inner/dense_1", "dense_2", "dense_3"],
        # What overflows between layers, and which layers it comes from.
        "with operations": ["Add", "Dense", "Dense", "Exp", "Functional", "Multiply"],
        "makers": ["dense_0", "dense_1"],
        "taken": [[None, 3], [None, 3]],
        "held": ["Dropout", "EinsumDense", "EinsumDense", "EinsumDense", "EinsumDense", "Softmax"],
        # Which layers need not be tried, and which are better left in float32.
        "keras": [True, True, False],
        "data": [True, True, False],
        "cast": [True, False],
        # An optimizer in the place of another, also in what is saved; and whose that one was.
        "compiled with": True,
        "put": True,
        "saved": "LossScaleOptimizer",
        "loss": 4.0,
        "scaled by keras": True,
        # XLA needs other ties between gradients: without this, nothing is saved there.
        "for xla": [True, False, True],
        # A plan for a dataset whose last batch is smaller needs to know how large the others are.
        "batches": [4, 4, None],
    }
