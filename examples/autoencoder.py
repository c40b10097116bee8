"""Learns to take the noise off pictures of waves, with a convolutional autoencoder."""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE = 64


def make_images(count: int) -> np.ndarray:
    """Pictures of waves with a random direction, length and phase."""
    random = np.random.default_rng(0)
    across, down = np.meshgrid(np.linspace(0, 1, SIZE), np.linspace(0, 1, SIZE))
    angle, length, phase = (
        random.uniform(low, high, (count, 1, 1)) for low, high in ((0, np.pi), (3, 9), (0, 2 * np.pi))
    )
    waves = np.sin(2 * np.pi * length * (across * np.cos(angle) + down * np.sin(angle)) + phase)
    return (0.5 + 0.5 * waves[..., None]).astype("float32")


def make_autoencoder() -> keras.Model:
    """Two convolutions down, two up."""
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))


def main() -> None:
    """Train it on noisy pictures, and compare what it makes of them with the clean ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(2)
    tf.config.experimental.enable_op_determinism()
    clean = make_images(512)
    noisy = clean + np.random.normal(0.0, 0.3, clean.shape).astype("float32")
    autoencoder = make_autoencoder()
    autoencoder.compile(keras.optimizers.Adam(1e-3, epsilon=1e-5), loss="mse")
    autoencoder.fit(
        noisy[64:],
        clean[64:],
        batch_size=options.batch,
        epochs=options.epochs,
        shuffle=True,
        validation_data=(noisy[:64], clean[:64]),
        verbose=2,
    )
    denoised = autoencoder.predict(noisy[:64], batch_size=options.batch, verbose=0)
    if options.save:
        variables = [*autoencoder.variables, *autoencoder.optimizer.variables]
        np.savez(options.save, **{str(number): one.numpy() for number, one in enumerate(variables)})
    before, after = (float(np.mean((images - clean[:64]) ** 2)) for images in (noisy[:64], denoised))
    print(f"error {before:.4f} before, {after:.4f} after")


if __name__ == "__main__":
    main()
