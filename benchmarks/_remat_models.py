"""The ten architectures of the rematerialisation benchmark, with a batch for each."""

from __future__ import annotations

from typing import Any

APPLICATIONS = {
    "ResNet50": (32, 96),
    "DenseNet121": (32, 96),
    "MobileNetV2": (32, 96),
    "EfficientNetB0": (32, 96),
    "VGG16": (16, 96),
    "InceptionV3": (16, 128),
    "ConvNeXtTiny": (16, 64),
}
NAMES = (*APPLICATIONS, "U-Net", "transformer", "dense chain")


def batch_size_of(name: str) -> int:
    """The batch size that a model is measured with."""
    return {"U-Net": 32, "transformer": 16, "dense chain": 1024}.get(name) or APPLICATIONS[name][0]


def build(name: str) -> tuple[Any, str]:
    """A model with the same weights each time, and its loss."""
    import keras

    keras.utils.set_random_seed(0)
    if name in APPLICATIONS:
        pixels = APPLICATIONS[name][1]
        make = getattr(keras.applications, name)
        return make(
            weights=None, input_shape=(pixels, pixels, 3), classes=10
        ), "sparse_categorical_crossentropy"
    return {"U-Net": _unet, "transformer": _transformer, "dense chain": _chain}[name]()


def data_for(name: str, model: Any, count: int) -> tuple[Any, Any]:
    """Inputs and targets."""
    import numpy as np

    random = np.random.default_rng(0)
    shape = tuple(model.inputs[0].shape[1:])
    if name == "transformer":
        x = random.integers(0, 4000, (count, *shape)).astype("int32")
        x[:, -shape[0] // 4 :] = 0  # masked
    else:
        x = random.random((count, *shape), "float32")
    if name == "dense chain":
        return x, random.random((count, 1), "float32")
    y_shape = (count, *shape[:2]) if name == "U-Net" else (count,)
    return x, random.integers(0, 4, y_shape)


def _unet() -> tuple[Any, str]:
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((96, 96, 3))
    x, skipped = inputs, []
    for width in (16, 32, 64, 128):
        x = block(x, width)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 256)
    for width in (128, 64, 32, 16):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skipped.pop()])
        x = block(x, width)
    return keras.Model(
        inputs, layers.Conv2D(4, 1, activation="softmax")(x)
    ), "sparse_categorical_crossentropy"


def _transformer() -> tuple[Any, str]:
    import keras
    from keras import layers

    inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(4000, 256, mask_zero=True)(inputs)
    for _ in range(8):
        attended = layers.MultiHeadAttention(4, 64, dropout=0.1)(*[layers.LayerNormalization()(x)] * 2)
        x = layers.Add()([x, attended])
        wide = layers.Dense(1024, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(256)(wide))])
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x)), "sparse_categorical_crossentropy"


def _chain() -> tuple[Any, str]:
    import keras
    from keras import layers

    inputs = keras.Input((512,))
    x = inputs
    for _ in range(64):
        x = layers.Dense(512, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(1)(x)), "mse"
