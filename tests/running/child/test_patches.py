"""What is done when a script imports a module: random numbers are seeded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervised import run_script

DRAWS = """
import sys
from memfit.running.child.patches import seed_everything
seed_everything(int(sys.argv[1]))
import random
import numpy as np
print(random.random(), np.random.random())
"""


def _drawn(seed: int) -> str:
    return subprocess.run(
        [sys.executable, "-c", DRAWS, str(seed)], capture_output=True, text=True, check=True
    ).stdout


def test_scripts_that_seed_nothing_draw_the_same_in_each_attempt() -> None:
    assert _drawn(5) == _drawn(5) != _drawn(6)


UNDER_A_STRATEGY = """
import tensorflow as tf
import numpy as np

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
for _ in range(2):
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
model.evaluate(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.real
def test_what_is_not_guarded_is_reported_once(tmp_path: Path) -> None:
    said, report = run_script(tmp_path, UNDER_A_STRATEGY, budget="200MiB")
    note = "Not guarded: the model was created under a distribution strategy."
    assert said.count(note) == 1
    assert report["notes"] == [note]


LOOPS = """
import sys
import keras
import numpy as np
import tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD()
x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
if sys.argv[1] == "guarded":
    import memfit

    loss_of = lambda a, b: keras.ops.mean((model(a) - b) ** 2)
    step = memfit.step(loss_of, optimizer, model.trainable_variables)
else:
    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

for _ in range(3):
    step(x, y)
"""


@pytest.mark.real
@pytest.mark.parametrize("how", ["guarded", "by hand"])
def test_a_loop_of_ones_own_is_named_by_its_line(tmp_path: Path, how: str) -> None:
    said, report = run_script(tmp_path, LOOPS, how, budget="200MiB")
    line = 1 + LOOPS.splitlines().index(next(one for one in LOOPS.splitlines() if "apply_gradients" in one))
    what = "applies gradients in a loop of its own; memfit.step(...) guards such loops."
    notes = [] if how == "guarded" else [f"Not guarded: train.py:{line} {what}"]
    assert report["notes"] == notes
    assert all(f"memfit: {note}" in said for note in notes)


RUNS_OUT = """
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((64, 64, 3)), tf.keras.layers.Conv2D(64, 3)])
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(tf.ones((64, 64, 64, 3))))
"""


@pytest.mark.real
def test_a_loop_that_runs_out_before_its_first_update_is_named_as_well(tmp_path: Path) -> None:
    said, report = run_script(tmp_path, RUNS_OUT, budget="48MiB", code=1)
    reason = "train.py:6 ran out of memory outside of fit; memfit.step(...) guards loops of one's own"
    note = f"Not guarded: {reason}."
    assert f"memfit: {note}" in said
    assert report["notes"] == [note]


BY_BATCHES = """
import keras
import numpy as np
import tensorflow as tf

model = keras.Sequential([
    keras.Input((32, 32, 3)), keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.Conv2D(32, 3),
    keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1),
])
model.compile("sgd", "mse")
for size in (4, 4, 256, 256):
    model.train_on_batch(np.ones((size, 32, 32, 3), "float32"), np.ones((size, 1), "float32"))


def batches():
    for _ in range(3):
        yield np.ones((4, 32, 32, 3), "float32"), np.ones((4, 1), "float32")


specs = tf.TensorSpec((None, 32, 32, 3)), tf.TensorSpec((None, 1))
model.fit(tf.data.Dataset.from_generator(batches, output_signature=specs), epochs=2, verbose=0)
"""


@pytest.mark.real
def test_a_loop_over_train_on_batch_is_counted_and_written_down_like_a_fit(tmp_path: Path) -> None:
    said, report = run_script(tmp_path, BY_BATCHES, budget="60MiB")
    assert "Step 3 " in said
    loop, fit = report["trainings"]
    assert (loop["steps"], loop["is_over"]) == (4, True)
    assert loop["micro_batch_size"] < 256
    assert (fit["steps"], fit["is_over"]) == (6, True), "the end of an epoch is no step"
