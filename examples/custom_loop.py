"""Teaches a network to say where two pictures differ, in a loop of its own around `memfit.step`."""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import memfit

SIZE = 48


def make_pairs(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of pictures that differ in one spot, and the spot."""
    random = np.random.default_rng(5)
    left = random.random((count, SIZE, SIZE, 1), "float32")
    right, spots = left.copy(), np.zeros((count, SIZE, SIZE, 1), "float32")
    for number, (x, y) in enumerate(random.integers(0, SIZE - 6, (count, 2))):
        right[number, x : x + 6, y : y + 6] = random.random((6, 6, 1), "float32")
        spots[number, x : x + 6, y : y + 6] = 1.0
    return left, right, spots


def make_model() -> keras.Model:
    """The same eye looks at both pictures; a second part compares what it has seen."""
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="tanh")(inputs)
    eye = keras.Model(inputs, layers.Conv2D(16, 3, padding="same", activation="tanh")(x))
    left, right = keras.Input((SIZE, SIZE, 1)), keras.Input((SIZE, SIZE, 1))
    x = layers.Subtract()([eye(left), eye(right)])
    x = layers.Conv2D(16, 3, padding="same", activation="tanh")(x)
    return keras.Model([left, right], layers.Conv2D(1, 3, padding="same")(x))


def main() -> None:
    """Train it batch by batch, and say what the loss came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(5)
    tf.config.experimental.enable_op_determinism()
    model, optimizer = make_model(), keras.optimizers.SGD(0.2, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def loss_of(left: tf.Tensor, right: tf.Tensor, spots: tf.Tensor) -> tf.Tensor:
        logits = model([left, right], training=True)
        return ops.mean(ops.binary_crossentropy(spots, logits, from_logits=True))

    step = memfit.step(loss_of, optimizer, model.trainable_variables)
    pairs = tf.data.Dataset.from_tensor_slices(make_pairs(512)).shuffle(512, seed=5).batch(options.batch)
    for epoch in range(options.epochs):
        losses = [float(step(*batch)) for batch in pairs]
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)
    if options.save:
        variables = [*model.variables, *optimizer.variables]
        np.savez(options.save, **{str(number): one.numpy() for number, one in enumerate(variables)})
    print(f"loss {losses[-1]:.4f} after {int(optimizer.iterations)} steps")


if __name__ == "__main__":
    main()
