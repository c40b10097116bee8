"""Under XLA, the need of a step is read before it runs: what cannot fit is not tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from limited import run_limited

pytestmark = pytest.mark.real

ROWS = 16


def _train() -> dict[str, Any]:
    import logging

    import keras
    from keras import layers

    import memfit

    logging.getLogger("memfit").setLevel(logging.ERROR)
    keras.utils.set_random_seed(1)
    hidden = [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((48, 48, 3)), *hidden, layers.GlobalAveragePooling2D()])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    random = np.random.default_rng(0)
    x, y = random.random((3 * ROWS, 48, 48, 3), "float32"), random.random((3 * ROWS, 16), "float32")
    run = memfit.fit(model, x, y, batch_size=ROWS, shuffle=False, verbose=0, plan=False).run
    return {
        "weights": [weight.numpy().tolist() for weight in model.trainable_weights],
        "micro_batch_size": run.micro_batch_size,
        "ooms": len(run.ooms),
        "peak_bytes": run.peak_bytes,
    }


def test_steps_that_xla_compiles_do_not_run_out() -> None:
    roomy = run_limited(_train, "1GiB")
    assert roomy["micro_batch_size"] == ROWS
    for share in (0.7, 0.3):
        tight = run_limited(_train, f"{int(share * roomy['peak_bytes']) >> 20}MiB")
        assert tight["ooms"] == 0
        assert tight["micro_batch_size"] < ROWS
        for mine, theirs in zip(tight["weights"], roomy["weights"], strict=True):
            assert np.allclose(mine, theirs, rtol=0, atol=1e-5)


def _needs() -> dict[str, list[int]]:
    import tensorflow as tf

    from memfit.guarding.step.room import _IN_ONE_PIECE, CompiledNeed, WouldRunOut
    from memfit.machine import measure_peak
    from memfit.model.traced_functions import Graph

    weights = tf.Variable(tf.random.normal((512, 512), seed=1) / 16)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for _ in range(4):
                y = tf.tanh(y @ weights)
            loss = tf.reduce_mean(y**2)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    traced = Graph(step, [tf.TensorSpec((None, 512))], jit_compile=True)
    need = CompiledNeed(traced.concrete)
    found = {}
    for rows in (256, 1024):
        batch = tf.ones((rows, 512))
        traced(batch)
        with measure_peak() as measured:
            traced(batch)
        try:
            need.check(rows, 1)
        except WouldRunOut as error:
            found[str(rows)] = [int(_IN_ONE_PIECE * error.needed_bytes), measured.over_base_bytes]
    need.check(1024, None)
    need.check(1024, 1 << 40)
    return found


def test_the_need_is_that_of_the_compiled_program() -> None:
    found = run_limited(_needs, "1GiB")
    assert set(found) == {"256", "1024"}
    for laid_out, measured in found.values():
        assert laid_out <= 1.02 * measured <= 1.02 * 2 * laid_out  # TensorFlow hands out up to twice of it
