"""Ten kinds of models, each with more activations than weights, so that a limit bites at the full batch."""

from __future__ import annotations

from typing import Any

BATCH = 64
STEPS = 20


def data_for(kind: str, *, count: int = BATCH * STEPS) -> dict[str, Any]:
    """Samples for a kind of model, as arguments of `fit`."""
    import numpy as np

    random = np.random.default_rng(1)
    images = random.random((count, 32, 32, 3))
    rows = random.random((count, 96, 48))
    tokens = random.integers(1, 200, (count, 96)) * (np.arange(96) < random.integers(20, 97, (count, 1)))
    labels = random.integers(0, 4, count)
    return {
        "dense": {"x": rows, "y": labels},
        "convolution": {"x": images, "y": labels},
        "convolution with BatchNorm": {"x": images, "y": labels},
        "transformer with dropout and masks": {"x": tokens, "y": tokens % 7},
        "LSTM": {"x": rows, "y": labels},
        "embedding": {"x": tokens, "y": labels},
        "inputs and outputs": {
            "x": {"image": images, "row": rows},
            "y": {"class": labels, "mean": rows.mean(axis=(1, 2))[:, None]},
        },
        "VAE with its own train_step": {"x": rows},
        "mixed_float16": {"x": rows, "y": labels},
        "GAN with two optimizers": {"x": rows},
    }[kind]


KINDS = (
    "dense", "convolution", "convolution with BatchNorm", "transformer with dropout and masks", "LSTM",
    "embedding", "inputs and outputs", "VAE with its own train_step", "mixed_float16",
    "GAN with two optimizers",
)  # fmt: skip

# Without BatchNorm and random layers a split changes nothing but the rounding.
SAME_AS_PLAIN = ("dense", "convolution", "LSTM", "embedding", "inputs and outputs")


def make(kind: str) -> Any:
    """A new compiled model of a kind."""
    import keras

    keras.utils.set_random_seed(3)
    if kind == "VAE with its own train_step":
        return _vae()
    if kind == "GAN with two optimizers":
        return _gan()
    policy = "mixed_float16" if kind == "mixed_float16" else keras.config.floatx()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        inputs, outputs, loss, optimizer = _LAYERS[kind]()
    finally:
        keras.config.set_dtype_policy(before)
    model = keras.Model(inputs, outputs)
    if kind == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(
        optimizer, loss, metrics=None if isinstance(loss, dict) else ["accuracy"], jit_compile=False
    )
    return model


def _classes(x: Any) -> Any:
    from keras import layers

    return layers.Dense(4, activation="softmax", dtype="float32" if x.dtype == "float16" else None)(x)


_LOSS = "sparse_categorical_crossentropy"


def _dense() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((96, 48))
    x = inputs
    for _ in range(3):
        x = layers.Dense(64, activation="tanh", kernel_regularizer="l2")(x)
    return inputs, _classes(layers.GlobalAveragePooling1D()(x)), _LOSS, keras.optimizers.Adam(1e-3)


def _convolution(normalised: bool = False) -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="tanh")(inputs)
    for _ in range(6):  # of size one, which need no scratch memory: that does not shrink with the batch
        x = layers.Conv2D(112 if normalised else 64, 1, activation="tanh")(x)
        x = layers.BatchNormalization()(x) if normalised else x
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    return inputs, _classes(layers.GlobalAveragePooling2D()(x)), _LOSS, optimizer


def _transformer() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((96,), dtype="int32")
    x = layers.Embedding(200, 32, mask_zero=True)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(attended)]))
        wide = layers.Dense(32)(layers.Dense(64, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, wide]))
    outputs = layers.Dense(7, activation="softmax")(x)
    return inputs, outputs, _LOSS, keras.optimizers.AdamW(1e-3, global_clipnorm=1.0)


def _lstm() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((96, 48))
    x = layers.LSTM(48, return_sequences=True)(inputs)
    return inputs, _classes(layers.LSTM(32)(x)), _LOSS, keras.optimizers.RMSprop(1e-3)


def _embedding() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((96,), dtype="int32")
    x = layers.Embedding(200, 16)(inputs)
    for _ in range(3):
        x = layers.Dense(96, activation="tanh")(x)
    return inputs, _classes(layers.GlobalMaxPooling1D()(x)), _LOSS, keras.optimizers.Adagrad(0.05)


def _inputs_and_outputs() -> Any:
    import keras
    from keras import layers

    image, row = keras.Input((32, 32, 3), name="image"), keras.Input((96, 48), name="row")
    first = layers.GlobalAveragePooling2D()(layers.Conv2D(24, 3, activation="tanh", padding="same")(image))
    second = layers.GlobalAveragePooling1D()(layers.Dense(64, activation="tanh")(row))
    x = layers.Concatenate()([first, second])
    outputs = {"class": _classes(x), "mean": layers.Dense(1)(x)}
    losses = {"class": _LOSS, "mean": keras.losses.MeanSquaredError(reduction="sum")}
    return {"image": image, "row": row}, outputs, losses, keras.optimizers.Adam(1e-3, clipnorm=1.0)


_LAYERS: dict[str, Any] = {
    "dense": _dense,
    "convolution": _convolution,
    "convolution with BatchNorm": lambda: _convolution(normalised=True),
    "transformer with dropout and masks": _transformer,
    "LSTM": _lstm,
    "embedding": _embedding,
    "inputs and outputs": _inputs_and_outputs,
    "mixed_float16": _dense,
}


def _vae() -> Any:
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class VAE(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([
                keras.Input((96, 48)), layers.Dense(64, activation="tanh"),
                layers.Dense(64, activation="tanh"), layers.GlobalAveragePooling1D(), layers.Dense(8),
            ])  # fmt: skip
            self.decoder = keras.Sequential([
                keras.Input((4,)), layers.RepeatVector(96), layers.Dense(64, activation="tanh"),
                layers.Dense(64, activation="tanh"), layers.Dense(48),
            ])  # fmt: skip
            self.noise = keras.random.SeedGenerator(5)
            self.total = keras.metrics.Mean(name="loss")
            self.divergence = keras.metrics.Mean(name="divergence")

        @property
        def metrics(self) -> list[Any]:
            return [self.total, self.divergence]

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                mean, spread = ops.split(self.encoder(data, training=True), 2, axis=-1)
                drawn = keras.random.normal(ops.shape(mean), dtype=mean.dtype, seed=self.noise)
                decoded = self.decoder(mean + ops.exp(0.5 * spread) * drawn, training=True)
                error = ops.sum((decoded - data) ** 2, axis=(1, 2))
                divergence = -0.5 * ops.sum(1 + spread - mean**2 - ops.exp(spread), axis=1)
                loss = ops.mean(error + divergence)
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total.update_state(loss)
            self.divergence.update_state(ops.mean(divergence))
            return {"loss": self.total.result(), "divergence": self.divergence.result()}

    model = VAE()
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
    return model


def _gan() -> Any:
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class GAN(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.judge = keras.Sequential([
                keras.Input((96, 48)), layers.Dense(64, activation="tanh"), layers.Dropout(0.1),
                layers.Dense(64, activation="tanh"), layers.GlobalAveragePooling1D(), layers.Dense(1),
            ])  # fmt: skip
            self.painter = keras.Sequential([
                keras.Input((4,)), layers.RepeatVector(96), layers.Dense(64, activation="tanh"),
                layers.Dense(64, activation="tanh"), layers.Dense(48),
            ])  # fmt: skip
            self.noise = keras.random.SeedGenerator(5)
            self.judged = keras.metrics.Mean(name="judged")
            self.painted = keras.metrics.Mean(name="painted")

        def compile(self, judge: Any, painter: Any, **options: Any) -> None:
            super().compile(**options)
            self.judge_optimizer, self.painter_optimizer = judge, painter

        @property
        def metrics(self) -> list[Any]:
            return [self.judged, self.painted]

        def train_step(self, data: Any) -> Any:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            noise = (ops.shape(data)[0], 4)
            painted = self.painter(keras.random.normal(noise, dtype=data.dtype, seed=self.noise))
            with tf.GradientTape() as tape:
                real, fake = self.judge(data, training=True), self.judge(painted, training=True)
                judged = loss(ops.ones_like(real), real) + loss(ops.zeros_like(fake), fake)
            weights = self.judge.trainable_weights
            self.judge_optimizer.apply(tape.gradient(judged, weights), weights)
            with tf.GradientTape() as tape:
                fresh = self.painter(keras.random.normal(noise, dtype=data.dtype, seed=self.noise))
                fake = self.judge(fresh, training=True)
                fooled = loss(ops.ones_like(fake), fake)
            weights = self.painter.trainable_weights
            self.painter_optimizer.apply(tape.gradient(fooled, weights), weights)
            self.judged.update_state(judged)
            self.painted.update_state(fooled)
            return {"loss": self.painted.result(), "judged": self.judged.result()}

    model = GAN()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3), jit_compile=False)
    return model
