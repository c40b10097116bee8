"""Trains an encoder, a reader of its codes, and both together, each from data of another kind."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
from keras import layers

LENGTH, WIDTH, CODE = 128, 32, 16


def make_signals(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy waves in many channels, and how fast each swings."""
    random = np.random.default_rng(6)
    speed = random.uniform(1.0, 6.0, (count, 1)).astype("float32")
    phase = random.uniform(0.0, 2 * np.pi, (count, 1, WIDTH))
    time = np.linspace(0.0, 1.0, LENGTH)[None, :, None]
    waves = np.sin(2 * np.pi * speed[:, :, None] * time + phase)
    return (waves + random.normal(0.0, 0.1, waves.shape)).astype("float32"), speed


class Signals(keras.utils.PyDataset):
    """Signals and speeds, in another order each epoch."""

    def __init__(self, signals: np.ndarray, speed: np.ndarray, batch_size: int) -> None:
        super().__init__()
        self.signals, self.speed, self.batch_size = signals, speed, batch_size
        self.order, self.random = np.arange(len(signals)), np.random.default_rng(7)

    def __len__(self) -> int:
        return math.ceil(len(self.order) / self.batch_size)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.order[number * self.batch_size : (number + 1) * self.batch_size]
        return self.signals[chosen], self.speed[chosen]

    def on_epoch_end(self) -> None:
        """Shuffle."""
        self.random.shuffle(self.order)


def batches_of(signals: np.ndarray, speed: np.ndarray, batch_size: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Batches without end, each sample as often as any other."""
    random = np.random.default_rng(8)
    while True:
        order = random.permutation(len(signals))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            chosen = order[start : start + batch_size]
            yield signals[chosen], speed[chosen]


def make_models() -> tuple[keras.Model, ...]:
    """An encoder, the same with a decoder behind it, a reader of codes, and a reader of signals."""
    signal = keras.Input((LENGTH, WIDTH))
    x = signal
    for _ in range(4):
        x = layers.Dense(64, activation="tanh")(x)
    code = layers.Dense(CODE)(x)
    encoder = keras.Model(signal, code)
    autoencoder = keras.Model(signal, layers.Dense(WIDTH)(layers.Dense(64, activation="tanh")(code)))
    codes = keras.Input((LENGTH, CODE))
    x = layers.Dense(32, activation="relu")(layers.AveragePooling1D(4)(codes))
    reader = keras.Model(codes, layers.Dense(1)(layers.GlobalMaxPooling1D()(x)))
    return encoder, autoencoder, reader, keras.Model(signal, reader(encoder(signal)))


def main() -> None:
    """Train three models one after the other, then evaluate and predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(6)
    tf.config.experimental.enable_op_determinism()
    signals, speed = make_signals(512)
    encoder, autoencoder, reader, whole = make_models()
    autoencoder.compile("adam", "mse")
    autoencoder.fit(signals, signals, batch_size=options.batch, epochs=options.epochs, verbose=2)
    codes = encoder.predict(signals, batch_size=options.batch, verbose=0)
    reader.compile("rmsprop", "mse")
    reader.fit(Signals(codes, speed, options.batch // 4), epochs=options.epochs, verbose=2)
    whole.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mae")
    whole.fit(
        batches_of(signals, speed, options.batch // 4),
        steps_per_epoch=4 * len(signals) // options.batch,
        epochs=options.epochs,
        verbose=2,
    )
    error = whole.evaluate(signals, speed, batch_size=options.batch, verbose=0)
    found = whole.predict(signals[:4], verbose=0)
    if options.save:
        models = (autoencoder, reader, whole)
        variables = [one for model in models for one in (*model.variables, *model.optimizer.variables)]
        np.savez(options.save, **{str(number): one.numpy() for number, one in enumerate(variables)})
    print(f"off by {error:.3f}; the first four: {' '.join(f'{value:.2f}' for value in found[:, 0])}")


if __name__ == "__main__":
    main()
