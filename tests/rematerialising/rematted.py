"""Models for the tests of rematerialisation: everything that a replay could get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROWS = 12


def _blocks(x: Any, count: int = 4, width: int = 8) -> Any:
    from keras import layers

    for _ in range(count):
        x = layers.Dense(width, activation="tanh")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Dropout(0.3)(x)
    return x


def functional(cls: Any = None) -> Any:
    """Dropout, BatchNorm, activity and weight regularisers, and a way around."""
    import keras
    from keras import layers

    inputs = keras.Input((6,))
    x = layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l1")(inputs)
    y = _blocks(x)
    return (cls or keras.Model)(inputs, layers.Dense(1)(layers.Add()([x, y])))


def sequential() -> Any:
    import keras
    from keras import layers

    return keras.Sequential([
        keras.Input((6,)),
        *(layer for _ in range(4) for layer in (layers.Dense(8, "gelu"), layers.GaussianNoise(0.1))),
        layers.Dense(1),
    ])  # fmt: skip


def nested() -> Any:
    """A model in a model, one of them called twice, and layers that are shared."""
    import keras
    from keras import layers

    inner_inputs = keras.Input((8,))
    inner = keras.Model(inner_inputs, _blocks(inner_inputs, 3), name="inner")
    twice = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dropout(0.2)], name="twice")
    shared = layers.Dense(8, "relu")
    inputs = keras.Input((6,))
    x = inner(layers.Dense(8)(inputs))
    x = shared(twice(twice(shared(x))))
    return keras.Model(inputs, layers.Dense(1)(_blocks(x, 2)))


def several() -> Any:
    """Two inputs, two outputs, and one output that is used inside too."""
    import keras
    from keras import layers

    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    x = _blocks(layers.Concatenate()([left, right]), 2)
    first = layers.Dense(1, name="first")(x)
    second = layers.Dense(1, name="second")(_blocks(layers.Concatenate()([x, first]), 2))
    return keras.Model({"left": left, "right": right}, {"first": first, "second": second})


def masked() -> Any:
    """Masks that one layer makes and others use, loops, and a table with sparse gradients."""
    import keras
    from keras import layers

    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(10, 8, mask_zero=True)(inputs)
    x = layers.Dropout(0.2)(x)
    x = layers.LSTM(8, return_sequences=True, recurrent_dropout=0.2)(x)
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, layers.Dense(1)(layers.GRU(4, dropout=0.1)(x)))


def own_layers() -> Any:
    """Layers that add losses, count, keep a metric, draw without a seed, and take `training` from outside."""
    import keras
    from keras import layers, ops

    class Counts(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
            self.mean = keras.metrics.Mean(name="of_layer")
            self.drop = layers.Dropout(0.4)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            self.mean.update_state(ops.mean(x))
            self.add_loss(0.1 * ops.mean(x**2))
            return self.drop(x) + 0.01 * self.calls

    inputs = keras.Input((6,))
    x = inputs
    for _ in range(3):
        x = Counts()(layers.Dense(8, "swish")(x))
        x = layers.Lambda(lambda t: t * keras.random.uniform(ops.shape(t)), output_shape=(8,))(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def subclassed() -> Any:
    """Blocks that are layers, inside a layer, inside a model that is a class."""
    import keras
    from keras import layers

    class Block(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.norm = layers.Dense(8, "gelu"), layers.BatchNormalization()
            self.drop = layers.Dropout(0.3)

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.norm.build(shape)

        def call(self, x: Any, scale: float = 1.0) -> Any:
            return x + scale * self.drop(self.norm(self.dense(x)))

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = layers.Dense(8), layers.Dense(1)
            self.blocks = [Block() for _ in range(4)]

        def call(self, x: Any) -> Any:
            x = self.first(x)
            for block in self.blocks:
                x = block(x, scale=0.5)
            return self.last(x)

    model = Net()
    model(keras.ops.zeros((2, 6)))
    return model


def branched() -> Any:
    """Tensors that several calls take, in the same segment and in others: their gradients are sums."""
    import keras
    from keras import layers

    made = [keras.Input((6,))]
    for _ in range(8):
        joined = layers.Concatenate()(made) if len(made) > 1 else made[0]
        made.append(layers.Dense(8, "tanh")(joined))
    return keras.Model(made[0], layers.Dense(1)(layers.Concatenate()(made[1:])))


def own_step() -> Any:
    """A train_step of the user's own."""
    import keras
    import tensorflow as tf

    class Own(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2) + sum(self.losses)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    return functional(Own)


KINDS: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (functional, sequential, nested, several, masked, own_layers, subclassed, branched, own_step)
}


def data_for(kind: str) -> tuple[Any, Any]:
    """Two batches, the last one smaller."""
    import numpy as np

    random = np.random.default_rng(0)
    x = random.random((ROWS, 6)).astype("float32")
    y = random.random((ROWS, 1)).astype("float32")
    if kind == "several":
        return {"left": x, "right": x[::-1].copy()}, {"first": y, "second": 2 * y}
    if kind == "masked":
        return random.integers(0, 10, (ROWS, 5)).astype("int32"), y
    return x, y
