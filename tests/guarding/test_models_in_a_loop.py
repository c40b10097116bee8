"""Models that are trained one after the other: each gives all its memory back."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _train_several() -> list[list[Any]]:
    import gc

    import keras
    import numpy as np
    from keras import layers

    import memfit

    x, y = np.ones((256, 512), "float32"), np.ones((256, 1), "float32")
    seen: list[list[Any]] = []
    for options in ({}, {"plan": False}, {"micro_batch_size": 32}, {"budget": "20MiB"}):
        # One name for all, as in a script: the model of before goes only when the next one is there.
        hidden = [layers.Dense(512, "gelu"), layers.Dense(512, "relu"), layers.Dropout(0.1)]
        model = keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(1)])
        model.compile("adam", "mse")
        run = memfit.fit(model, x, y, batch_size=64, verbose=0, **options).run
        seen.append([run.steps, len(run.ooms)])
    del model, hidden
    gc.collect()
    return [*seen, [memfit.devices.device_memory().current_bytes]]


def test_models_that_are_trained_in_a_loop_leave_nothing_in_the_pool() -> None:
    # Weights and slots of a model take 6.3 MB: with those of all four, a step would not fit.
    *trainings, left = run_limited(_train_several, "26MiB")
    assert trainings == [[4, 0]] * 4
    assert left[0] < 1 << 20
