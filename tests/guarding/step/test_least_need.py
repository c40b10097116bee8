"""The least that a step can do with: never more than it really needs, and more than its inputs."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

ROWS = 32


def _needs() -> dict[str, Any]:
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.guarding.step.room import _SURELY, LeastNeed, WouldRunOut, least_need
    from memfit.machine import measure_peak

    def blocks(activation: str) -> Any:
        image = keras.Input((32, 32, 3))
        x = image
        for _ in range(3):
            x = layers.Conv2D(16, 3, padding="same")(x)
            x = layers.Activation(activation)(layers.BatchNormalization()(x))
        return keras.Model(image, layers.GlobalAveragePooling2D()(x))

    found: dict[str, Any] = {}
    for activation in ("relu", "swish", "gelu"):
        model = blocks(activation)
        model.compile("adam", "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        x, y = tf.ones((ROWS, 32, 32, 3)), tf.ones((ROWS, 16))
        for rows in (None, ROWS):
            step = tf.function(lambda x, y, model=model: model.train_step((x, y)), autograph=False)
            specs = (tf.TensorSpec((rows, 32, 32, 3)), tf.TensorSpec((rows, 16)))
            concrete = step.get_concrete_function(*specs)
            concrete(x, y)
            with measure_peak() as measured:
                concrete(x, y)
            least = least_need(concrete.graph)
            found[f"{activation} {rows}"] = [_SURELY * least.at(ROWS), measured.over_base_bytes]
    LeastNeed(100, 10).check(5, 97)
    LeastNeed(100, 10).check(5, None)
    try:
        LeastNeed(100, 10).check(5, 96)
    except WouldRunOut as error:
        found["raised"] = [error.needed_bytes, error.free_bytes]
    return found


@pytest.mark.real
@pytest.mark.parametrize("world", ["0", "1"])
def test_it_is_a_bound_from_below(world: str) -> None:
    found = run_limited(_needs, "1GiB", environment={"TF_ENABLE_ONEDNN_OPTS": world})
    assert found.pop("raised") == [97, 96]
    image_bytes = ROWS * 32 * 32 * 16 * 4
    for name, (least, real) in found.items():
        assert 2 * image_bytes < least < real, name


def _in_loops() -> dict[str, Any]:
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.guarding.step.room import WouldRunOut, least_need

    model = keras.Sequential([keras.Input((24, 8)), layers.LSTM(32), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    found: dict[str, Any] = {}
    for rows in (None, ROWS):
        step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
        specs = (tf.TensorSpec((rows, 24, 8)), tf.TensorSpec((rows, 1)))
        need = least_need(step.get_concrete_function(*specs).graph)
        assert need.in_loops is not None
        found[str(rows)] = need.in_loops.at(ROWS)
        need.check(1, need.in_loops.at(1))
        try:
            need.check(ROWS, need.in_loops.at(ROWS))
        except WouldRunOut:
            found[f"{rows} raised"] = True
    return found


@pytest.mark.real
def test_what_a_loop_keeps_for_the_way_back_counts_for_each_of_its_rounds() -> None:
    found = run_limited(_in_loops, None)
    gates = 24 * ROWS * 5 * 32 * 4  # three gates and two activations in each round
    for rows in ("None", str(ROWS)):
        assert gates <= found[rows] <= 1.3 * gates, "and what the loop is given"
        assert found[f"{rows} raised"], "a loop is not begun where it might not fit"
