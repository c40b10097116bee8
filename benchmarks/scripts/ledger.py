"""A training whose weights are a ledger: they say how often each sample was used in each epoch.

Sample i is row i of the unit matrix, the loss is the output, and the learning rate of epoch e is 4 to the
power of e: each use of a sample in that epoch takes exactly 4 ** e off its weight, and the digits of a weight
to the base of 4 are the uses of its sample, epoch by epoch. All numbers are small and whole, so that batches
in parts give the same bits. `--trouble` has the first attempt die of its memory, as it really happens.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SAMPLES, BATCH = 512, 64
GROWTH = 32 << 20  # bytes at a time
MOST_PIECES = 128  # where no cgroup stands in the way


class Trouble(keras.callbacks.Callback):
    """Makes the step after `at` the last one of the first attempt."""

    def __init__(self, kind: str, at: int, marker: Path) -> None:
        super().__init__()
        self.kind, self.at, self.marker = kind, at, marker

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Take a little time, as real steps do, and die where it is due."""
        time.sleep(0.05)
        if self.kind == "none" or self.marker.exists() or int(self.model.optimizer.iterations) <= self.at:
            return
        self.marker.touch()
        if self.kind == "grow":
            grow()
        else:
            run_out_under_xla()


def grow() -> None:
    """Take more and more of the host's memory, until the kernel kills."""
    held = []
    while len(held) < MOST_PIECES:
        held.append(np.ones(GROWTH, np.uint8))
        time.sleep(0.05)


def run_out_under_xla() -> None:
    """Run out of the device's memory in a step that XLA has compiled: the second time, TensorFlow aborts."""
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((128, 32)), *layers, keras.layers.Dense(32)])
    model.compile("adam", "mse", jit_compile=True)
    x = np.ones((256, 128, 32), "float32")
    for _ in range(3):
        with suppress(tf.errors.ResourceExhaustedError):
            model.fit(x, x, batch_size=256, verbose=0)


def main() -> None:
    """Train, and check the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save", required=True, metavar="FILE.npz")
    parser.add_argument("--trouble", choices=("none", "grow", "abort"), default="none")
    parser.add_argument("--at", type=int, default=0, metavar="STEP")
    options = parser.parse_args()

    keras.utils.set_random_seed(9)
    model = keras.Sequential(
        [keras.Input((SAMPLES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(), loss=lambda wanted, output: output)
    samples = np.eye(SAMPLES, dtype="float32")
    model.fit(
        samples,
        samples[:, :1],
        batch_size=BATCH,
        epochs=options.epochs,
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch: float(BATCH * 4**epoch)),
            Trouble(options.trouble, options.at, Path(options.save).with_suffix(".marker")),
        ],
        verbose=2,
    )
    weights = -model.get_weights()[0][:, 0].astype("int64")
    uses = weights[:, None] // 4 ** np.arange(options.epochs) % 4
    np.savez(options.save, weights=weights, uses=uses, steps=model.optimizer.iterations.numpy())
    print(f"every sample once in each epoch: {bool((uses == 1).all())}")


if __name__ == "__main__":
    main()
