"""Models that are trained in too little memory; half of them are kept aside while anything is tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _estimate_models as known
from _estimate_models import Model


def _wavenet(length: int = 2048, width: int = 32, classes: int = 64) -> Model:
    """Gated dilated convolutions over a sequence, for what comes next; every block adds to the output."""
    import keras
    import numpy as np
    from keras import layers

    def samples(count: int) -> tuple[Any, Any]:
        waves = (known._labels((count, 1), classes) + 5 * np.arange(length + 1, dtype="int32")) % classes
        return waves[:, :-1], waves[:, 1:]

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(classes, width)(inputs)
    skipped = []
    for dilation in 2 * (1, 2, 4, 8, 16, 32):
        made = [
            layers.Conv1D(width, 2, padding="causal", dilation_rate=dilation, activation=activation)(x)
            for activation in ("tanh", "sigmoid")
        ]
        gated = layers.Dropout(0.05)(layers.Multiply()(made))
        skipped.append(layers.Conv1D(width, 1)(gated))
        x = layers.Add()([x, layers.Conv1D(width, 1)(gated)])
    x = layers.Conv1D(width, 1, activation="relu")(layers.ReLU()(layers.Add()(skipped)))
    model = keras.Model(inputs, layers.Conv1D(classes, 1, activation="softmax")(x))
    return model, "sparse_categorical_crossentropy", samples


def _super_resolution(pixels: int = 48, width: int = 32, blocks: int = 12) -> Model:
    """Residual blocks without normalisation, and pixels that are shuffled into an image twice as large."""
    import keras
    from keras import layers

    def shuffled(x: Any) -> Any:
        x = layers.Reshape((pixels, pixels, 2, 2, width))(layers.Conv2D(4 * width, 3, padding="same")(x))
        return layers.Reshape((2 * pixels, 2 * pixels, width))(layers.Permute((1, 3, 2, 4, 5))(x))

    inputs = keras.Input((pixels, pixels, 3))
    x = first = layers.Conv2D(width, 3, padding="same")(inputs)
    for _ in range(blocks):
        inner = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        inner = layers.Conv2D(width, 3, padding="same")(inner)
        x = layers.Add()([x, layers.Rescaling(0.1)(inner)])
    x = shuffled(layers.Add()([first, layers.Conv2D(width, 3, padding="same")(x)]))
    model = keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(x))
    shape = (2 * pixels, 2 * pixels, 3)
    return model, "mae", lambda n: (known._random((n, pixels, pixels, 3)), known._random((n, *shape)))


def _two_streams(pixels: int = 64, width: int = 24) -> Model:
    """A stream for a picture and one for its motion, of residual blocks, that meet late."""
    import keras
    from keras import layers

    def convolved(x: Any, width: int, strides: int = 1) -> Any:
        x = layers.Conv2D(width, 3, strides=strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    def stream(x: Any) -> Any:
        x = layers.ReLU()(convolved(x, width))
        for depth in range(3):
            inner = convolved(layers.ReLU()(convolved(x, width << depth, 1 + (depth > 0))), width << depth)
            x = x if depth == 0 else layers.Conv2D(width << depth, 1, strides=2)(x)
            x = layers.ReLU()(layers.Add()([x, inner]))
        return x

    shapes = {"picture": (pixels, pixels, 3), "motion": (pixels, pixels, 2)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    x = layers.Concatenate()([stream(x) for x in inputs.values()])
    x = layers.ReLU()(convolved(x, width << 2))
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    return (
        model,
        "sparse_categorical_crossentropy",
        lambda n: ({name: known._random((n, *s)) for name, s in shapes.items()}, known._labels((n,), 10)),
    )


TUNED: dict[str, Callable[[], Model]] = {
    "U-Net": known.TUNED["U-Net"],
    "transformer": known.TUNED["transformer"],
    "ResNet50": lambda: known._application("ResNet50", 128),
}
ASIDE: dict[str, Callable[[], Model]] = {
    "two streams": _two_streams,
    "WaveNet": _wavenet,
    "super-resolution": _super_resolution,
}
SIZES = {
    "U-Net": 16, "transformer": 32, "ResNet50": 16, "two streams": 32, "WaveNet": 16, "super-resolution": 16,
}  # fmt: skip

LEARNING_RATE = 1e-4  # small, so that a difference in the last digit stays one


def compiled(name: str, accumulation_steps: int = 1) -> tuple[Any, Callable[[int], tuple[Any, Any]]]:
    """A model with the same weights each time, ready to be trained, and a function that makes samples."""
    import keras

    keras.utils.set_random_seed(0)
    model, loss, samples = {**TUNED, **ASIDE}[name]()
    steps = accumulation_steps if accumulation_steps > 1 else None
    optimizer = keras.optimizers.Adam(LEARNING_RATE, gradient_accumulation_steps=steps)
    model.compile(optimizer, loss, jit_compile=False)
    return model, samples
