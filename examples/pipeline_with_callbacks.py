"""Counts dots in pictures from a tf.data pipeline, with the callbacks that everybody uses."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE = 48


def make_pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Dark pictures with bright dots, and how many there are in each."""
    random = np.random.default_rng(4)
    pictures = random.integers(0, 60, (count, SIZE, SIZE, 1), dtype="uint8")
    numbers = random.integers(0, 10, count)
    for picture, number in zip(pictures, numbers, strict=True):
        for x, y in random.integers(0, SIZE - 3, (number, 2)):
            picture[x : x + 3, y : y + 3] = 255
    return pictures, numbers.astype("float32")


def make_dataset(
    pictures: np.ndarray, numbers: np.ndarray, batch_size: int, *, trains: bool
) -> tf.data.Dataset:
    """Pictures as numbers from 0 to 1 in batches; for training in another order each epoch, and turned."""
    dataset = tf.data.Dataset.from_tensor_slices((pictures, numbers))
    if trains:
        dataset = dataset.shuffle(len(pictures), seed=4)
    dataset = dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y), num_parallel_calls=2)
    if trains:
        dataset = dataset.map(lambda x, y: (tf.image.random_flip_left_right(x, seed=4), y))
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def make_model() -> keras.Model:
    """Convolutions, and a sum over the picture."""
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(24, 3, padding="same", activation="relu"),
            layers.Conv2D(24, 3, padding="same", activation="relu"),
            layers.AveragePooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32, activation="relu"),
            layers.Dense(1),
        ]
    )


def main() -> None:
    """Train it until it gets no better, and say how far off it is with its best weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(4)
    tf.config.experimental.enable_op_determinism()
    pictures, numbers = make_pictures(640)
    train = make_dataset(pictures[128:], numbers[128:], options.batch, trains=True)
    valid = make_dataset(pictures[:128], numbers[:128], options.batch, trains=False)
    model = make_model()
    model.compile("adam", "mse", metrics=["mae"])
    folder = Path(options.save).absolute().parent if options.save else Path(tempfile.mkdtemp())
    history = model.fit(
        train,
        validation_data=valid,
        epochs=options.epochs,
        verbose=2,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
            keras.callbacks.CSVLogger(folder / "history.csv"),
            keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        ],
    )
    _, error = model.evaluate(valid, verbose=0)
    if options.save:
        variables = [*model.variables, *model.optimizer.variables]
        saved = {str(number): one.numpy() for number, one in enumerate(variables)}
        np.savez(options.save, **saved, rate=history.history["learning_rate"])
    print(f"off by {error:.2f} dots after {len(history.epoch)} epochs")


if __name__ == "__main__":
    main()
