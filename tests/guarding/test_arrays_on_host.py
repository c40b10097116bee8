"""Arrays larger than the pool: scripts that hand them to TensorFlow train all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from limited import run_limited
from supervised import run_script

pytestmark = pytest.mark.real

SCRIPT = """
import tensorflow as tf
import numpy as np

x = np.random.default_rng(0).random((1600, 100, 100), "float32")  # 61 MiB
y = x.mean(axis=(1, 2), keepdims=False)[:, None]
held, same = tf.constant(x), tf.constant(x, dtype=tf.float32)
assert held[7, 5, 3] == same[7, 5, 3] == x[7, 5, 3]
data = tf.data.Dataset.from_tensor_slices(({"image": x}, y))
whole = tf.data.Dataset.from_tensors(x)
x[:] = 0  # what TensorFlow was given stays as it was
(first, target), = data.take(1)
assert first["image"].dtype == tf.float32 and abs(float(target[0]) - 0.5) < 0.1
assert float(next(iter(whole))[0, 0, 0]) == float(first["image"][0, 0]) == float(held[0, 0, 0]) != 0.0
small = tf.data.Dataset.from_tensor_slices(np.arange(4))
assert small.options().autotune.enabled is None and [int(one) for one in small] == [0, 1, 2, 3]
for same in (held, tf.convert_to_tensor(x + 1), list(x), x.astype("float64")):
    pipeline = tf.data.Dataset.from_tensor_slices((same, y)).shuffle(20).batch(8)
    assert next(iter(pipeline))[0].shape == (8, 100, 100)
inputs = tf.keras.Input((100, 100), name="image")
outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(inputs))
model = tf.keras.Model(inputs, outputs)
model.compile("sgd", "mse")
model.fit(data.shuffle(50).batch(32).prefetch(tf.data.AUTOTUNE), epochs=1, verbose=0)

rows = np.random.default_rng(1).random((180_000, 100), "float32")  # 69 MiB
windows = tf.keras.utils.timeseries_dataset_from_array(
    rows[:-64], rows[64:, 0], sequence_length=64, sequence_stride=100, batch_size=32
)
model = tf.keras.Sequential([tf.keras.layers.LSTM(8), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(windows, epochs=1, verbose=0)
"""


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_what_tensorflow_is_given_may_be_larger_than_the_limit(tmp_path: Path, onednn: str) -> None:
    said, report = run_script(tmp_path, SCRIPT, budget="48MiB", onednn=onednn)
    assert "may hold more than" not in said
    trainings = report["trainings"]
    assert [training["steps"] for training in trainings] == [50, 57]
    assert max(training["peak_bytes"] for training in trainings) < 48 << 20


def _train(how: str) -> list[float]:
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    keras.utils.set_random_seed(0)
    memfit.limit("48MiB")
    x = np.random.default_rng(0).random((1600, 100, 100), "float32")  # 61 MiB
    data = tf.data.Dataset.from_tensor_slices((tf.constant(x), x[:, 0, :1])).batch(32)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])  # built by its data
    model.compile("adam", "mse")
    if how == "fit":
        history = memfit.fit(model, data, verbose=0)
        assert "the model has not been built" not in str(history.run.notes)
    else:
        with memfit.protect(model):
            history = model.fit(data, verbose=0)
    losses: list[float] = history.history["loss"]
    return losses


def test_so_may_datasets_after_memfit_limit() -> None:
    fit, protect = (run_limited(_train, None, how=how) for how in ("fit", "protect"))
    assert fit == pytest.approx(protect)
