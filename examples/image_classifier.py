"""Tells round things from square ones in small pictures, with augmentation and dropout."""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE = 32


def make_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures of one bright shape each, and its kind: 0 disc, 1 ring, 2 square, 3 cross."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, 4, count)
    across, down = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    images = random.normal(0.0, 0.2, (count, SIZE, SIZE, 3))
    for image, kind in zip(images, kinds, strict=True):
        x, y = random.uniform(10, SIZE - 10, 2)
        radius = random.uniform(5, 9)
        u, v = np.abs(across - x), np.abs(down - y)
        distance = np.hypot(u, v)
        shapes = (
            distance < radius,
            np.abs(distance - radius) < 1.5,
            np.maximum(u, v) < radius,
            (np.minimum(u, v) < 1.5) & (np.maximum(u, v) < radius),
        )
        image[shapes[kind]] += random.uniform(0.4, 1.0, 3)
    return images.astype("float32"), kinds.astype("int32")


def make_model() -> keras.Model:
    """A small convolutional network."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.RandomTranslation(0.1, 0.1)(x)
    for filters in (16, 32):
        for _ in range(3):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
        x = layers.Dropout(0.25)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu")(x)
    x = layers.Dropout(0.5)(x)
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(x))


def main() -> None:
    """Train it, and say how well it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    images, kinds = make_images(960, seed=1)
    model = make_model()
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images, kinds, batch_size=options.batch, epochs=options.epochs, validation_split=0.2, verbose=2)
    test_images, test_kinds = make_images(128, seed=2)
    loss, accuracy = model.evaluate(test_images, test_kinds, batch_size=options.batch, verbose=0)
    if options.save:
        variables = [*model.variables, *model.optimizer.variables]
        np.savez(options.save, **{str(number): one.numpy() for number, one in enumerate(variables)})
    print(f"test loss {loss:.3f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
