"""A fact about Keras that the guard exists for: a step that fails leaves traces."""

from __future__ import annotations

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _optimizer_counts_after_an_oom() -> list[int]:
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((64, 64, 3)), keras.layers.Conv2D(64, 3, padding="same"), keras.layers.Dropout(0.5),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile("adam", "mse", jit_compile=False)
    try:
        model.train_on_batch(np.ones((64, 64, 64, 3), "float32"), np.ones((64, 1), "float32"))
    except tf.errors.ResourceExhaustedError:
        return [int(model.optimizer.iterations)]
    return []


def test_why_a_plain_retry_is_wrong() -> None:
    """Keras moves its step counter in a step that failed; when it no longer does, the README may say less."""
    assert run_limited(_optimizer_counts_after_an_oom, "60MiB") == [1]
