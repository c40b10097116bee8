"""Finds out whether a sentence of made-up words has its brackets right, with a small transformer."""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers

LENGTH = 96
WORDS = 40
OPEN, CLOSE = 1, 2  # 0 is padding


def make_sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Padded sentences of words and brackets, and whether every bracket is closed again."""
    random = np.random.default_rng(3)
    sentences = np.zeros((count, LENGTH), "int32")
    for sentence in sentences:
        length = random.integers(LENGTH // 3, LENGTH)
        sentence[:length] = random.integers(3, WORDS, length)
        places = np.sort(random.choice(length, 8, replace=False))
        sentence[places] = random.permutation([OPEN, CLOSE] * 4)
    depth = np.cumsum((sentences == OPEN).astype(int) - (sentences == CLOSE), axis=1)
    return sentences, (depth.min(axis=1) >= 0).astype("float32")


class Positions(layers.Layer):
    """Adds a learned vector for each place in the sentence, and hands the padding mask on."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.length, self.embedding = length, layers.Embedding(length, width)
        self.embedding.build((length,))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Words with their places."""
        return x + self.embedding(tf.range(self.length))


def make_model(width: int = 64, blocks: int = 2) -> keras.Model:
    """Embedding, transformer blocks, and the mean over the words."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, width, mask_zero=True)(inputs)
    x = Positions(LENGTH, width)(x)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + attended)
        hidden = layers.Dense(4 * width, activation="gelu")(x)
        hidden = layers.Dropout(0.1)(layers.Dense(width)(hidden))
        x = layers.LayerNormalization()(x + hidden)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def main() -> None:
    """Train it, and say how well it does on sentences that it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save", metavar="FILE.npz")
    options = parser.parse_args()

    keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    sentences, labels = make_sentences(640)
    model = make_model()
    model.compile(keras.optimizers.AdamW(1e-3), "binary_crossentropy", metrics=["accuracy"])
    model.fit(sentences[128:], labels[128:], batch_size=options.batch, epochs=options.epochs, verbose=2)
    loss, accuracy = model.evaluate(sentences[:128], labels[:128], batch_size=options.batch, verbose=0)
    if options.save:
        variables = [*model.variables, *model.optimizer.variables]
        np.savez(options.save, **{str(number): one.numpy() for number, one in enumerate(variables)})
    print(f"test loss {loss:.3f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
