"""Models that are let go of leave nothing behind, and others train on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _left_behind() -> list[int]:
    """Graphs, gradients and closures that three more models leave, each with a function of Python's."""
    import gc

    import keras
    import tensorflow as tf

    import memfit
    from memfit.private.tensorflow.function_graphs import count_closures, count_gradients, is_graph
    from watching.leaking import X, Y

    def counts() -> list[int]:
        gc.collect()
        graphs = sum(is_graph(thing) for thing in gc.get_objects())
        return [graphs, count_gradients(), count_closures()]

    def called(rows: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda row: row + 1, [rows], "float32"), (None, 4))

    def loop(times: int) -> None:
        for _ in range(times):
            inputs = keras.Input((4,))
            rows = keras.layers.Lambda(called, output_shape=(4,))(inputs)
            model = keras.Model(inputs, keras.layers.Dense(1)(rows))
            model.compile("adam", "mse", jit_compile=False)
            model.fit(X, Y, verbose=0)
            model.predict(X, verbose=0)
            memfit.release(model)

    loop(1)
    before = counts()
    loop(3)
    return [after - early for after, early in zip(counts(), before, strict=True)]


def _others_after(*, released: bool) -> list[list[float]]:
    """What two models and a function that draws numbers come to, with a third model let go of or not."""
    import keras
    import tensorflow as tf

    import memfit
    from watching.leaking import X, Y

    keras.utils.set_random_seed(7)
    shared = keras.layers.Dense(3)
    first, second, third = (
        keras.Sequential([keras.Input((4,)), layer, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        for layer in (shared, shared, keras.layers.Dense(3))
    )
    noise = tf.function(lambda: tf.random.normal((2,)))
    for model in (first, second, third):
        model.compile("adam", "mse", jit_compile=False)
        model.fit(X, Y, batch_size=8, verbose=0)
    drawn = [noise().numpy()]
    if released:
        memfit.release(first)
    for model in (second, third):
        model.fit(X, Y, batch_size=8, verbose=0)
    drawn += [noise().numpy()]
    found = [*second.get_weights(), *third.get_weights(), *drawn]
    return [array.ravel().tolist() for array in found]


def _custom_gradient() -> list[float]:
    """The gradient of a function that shares a layer with a model that was let go of."""
    import keras
    import tensorflow as tf

    import memfit
    from watching.leaking import X, Y

    @tf.custom_gradient
    def doubled(rows: Any) -> Any:
        return 2.0 * rows, lambda upstream: 20.0 * upstream

    layer = keras.layers.Dense(1)
    uses = tf.function(lambda rows: doubled(layer(rows)))
    uses(tf.ones((1, 4)))
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("adam", "mse", jit_compile=False)
    model.fit(X, Y, verbose=0)
    memfit.release(model)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(uses(tf.ones((1, 4))))
    gradient: list[float] = tape.gradient(total, layer.bias.value).numpy().tolist()
    return gradient


def _release() -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit
    from memfit.core.errors import NotAModel
    from watching.leaking import X, Y, small_model

    seen: dict[str, Any] = {"left behind": _left_behind(), "custom gradient": _custom_gradient()}
    seen["others"] = _others_after(released=True) == _others_after(released=False)
    model = small_model()
    model.fit(X, Y, verbose=0)
    predicted = model.predict(X, verbose=0)
    memfit.release(model)
    memfit.release(model)
    seen["predicts"] = bool(np.array_equal(model.predict(X, verbose=0), predicted))
    try:
        model.fit(X, Y, verbose=0)
    except ValueError as error:
        seen["needs"] = "compile()" in str(error)
    model.compile("sgd", "mse")
    seen["trains"] = len(model.fit(X, Y, verbose=0).history["loss"])
    memfit.release(keras.Sequential([keras.layers.Dense(1)]))  # neither built nor compiled
    try:
        memfit.release("model")
    except NotAModel as error:
        seen["refused"] = str(error).splitlines()
    return seen


def test_release() -> None:
    seen = run_limited(_release, None)
    assert seen["left behind"] == [0, 0, 0]
    assert seen["others"]
    assert seen["custom gradient"] == [20.0]
    assert seen["predicts"]
    assert seen["needs"]
    assert seen["trains"] == 1
    assert seen["refused"][2] == "  Received: str"
