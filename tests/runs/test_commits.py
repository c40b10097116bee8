"""The update of a model with more weights than activations, in groups."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

LAYERS, WIDTH = 6, 1024
WEIGHTS_BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4


def _train(how: str) -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit
    from runs.training import digest, prepare

    prepare(floatx="float32", deterministic=True)
    layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(keras.optimizers.Adam(1e-4), "mse", jit_compile=False)
    x = np.random.default_rng(0).random((32, WIDTH), "float32")
    arguments: dict[str, Any] = {"x": x, "y": x, "batch_size": 8, "verbose": 0, "shuffle": False}
    memfit.devices.reset_peak()
    if how == "plain":
        model.fit(**arguments)
    else:
        memfit.fit(model, **arguments, micro_batch_size=8 if how == "whole" else 4)
    return {"digest": digest(model), "peak": memfit.devices.device_memory().peak_bytes}


def test_the_old_values_of_one_group_at_a_time_are_kept() -> None:
    plain = run_limited(_train, "256MiB", how="plain")
    whole = run_limited(_train, "256MiB", how="whole")
    split = run_limited(_train, "256MiB", how="split")
    reserve = (256 << 20) // 20
    assert whole["digest"] == plain["digest"], "groups must not change the update"
    for ours in (whole, split):
        # Graph-mode peaks move by several per cent from run to run.
        assert ours["peak"] <= 1.06 * plain["peak"] + WEIGHTS_BYTES + reserve
