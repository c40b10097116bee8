"""Models of many kinds that are trained with plain Keras and with memfit, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Model = tuple[Any, tuple[int, ...], tuple[int, ...], int]  # the model, shapes of x and y, batch size


def _dense() -> Model:
    import keras
    from keras import layers

    hidden = [layers.Dense(1024, "relu") for _ in range(4)]
    return keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(8)]), (512,), (8,), 1024


def _convolutions() -> Model:
    import keras
    from keras import layers

    hidden = [layers.Conv2D(width, 3, padding="same", activation="relu") for width in (32, 32, 64, 32)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *hidden, layers.Conv2D(3, 3, padding="same")])
    return model, (64, 64, 3), (64, 64, 3), 32


def _volumes() -> Model:
    import keras
    from keras import layers

    hidden: list[Any] = []
    for width in (16, 32, 64):
        hidden += [layers.Conv3D(width, 3, padding="same", activation="relu"), layers.MaxPooling3D()]
    model = keras.Sequential([keras.Input((16, 32, 32, 1)), *hidden, layers.Flatten(), layers.Dense(4)])
    return model, (16, 32, 32, 1), (4,), 32


def _depthwise() -> Model:
    import keras

    model = keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)
    return model, (96, 96, 3), (10,), 16


def _transformer() -> Model:
    import keras
    from keras import layers

    tokens = keras.Input((128, 64))
    x = tokens
    for _ in range(4):
        normed = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(4, 32)(normed, normed)])
        x = layers.add([x, layers.Dense(64)(layers.Dense(256, "gelu")(layers.LayerNormalization()(x)))])
    return keras.Model(tokens, layers.Dense(8)(layers.GlobalAveragePooling1D()(x))), (128, 64), (8,), 64


def _lstm() -> Model:
    import keras
    from keras import layers

    hidden = [layers.LSTM(128, return_sequences=True), layers.LSTM(128), layers.Dense(4)]
    return keras.Sequential([keras.Input((96, 32)), *hidden]), (96, 32), (4,), 128


def _resnet50() -> Model:
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)
    return model, (96, 96, 3), (10,), 16


def _unet() -> Model:
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        return x

    image = keras.Input((96, 96, 3))
    x, kept = image, []
    for width in (16, 32, 64):
        x = block(x, width)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    for width, skipped in zip((64, 32, 16), reversed(kept), strict=True):
        x = block(layers.concatenate([layers.UpSampling2D()(x), skipped]), width)
    return keras.Model(image, layers.Conv2D(1, 1)(x)), (96, 96, 3), (96, 96, 1), 16


MODELS: dict[str, Callable[[], Model]] = {
    "dense": _dense,
    "convolutions": _convolutions,
    "3-D convolutions": _volumes,
    "MobileNetV2": _depthwise,
    "transformer": _transformer,
    "LSTM": _lstm,
    "ResNet50": _resnet50,
    "U-Net": _unet,
}

LEARNING_RATE = 1e-4


def compiled(name: str, accumulation_steps: int = 1) -> Model:
    """A model with the same weights each time, ready to be trained with Adam."""
    import keras

    keras.utils.set_random_seed(0)
    model, x_shape, y_shape, batch_size = MODELS[name]()
    steps = accumulation_steps if accumulation_steps > 1 else None
    model.compile(keras.optimizers.Adam(LEARNING_RATE, gradient_accumulation_steps=steps), "mse")
    return model, x_shape, y_shape, batch_size
