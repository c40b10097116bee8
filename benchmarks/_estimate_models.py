"""Models whose peak is estimated and measured; half of them are kept aside while anything is tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Model = tuple[Any, str, Callable[[int], tuple[Any, Any]]]  # model, loss, batch of a size


def _images(pixels: int, channels: int = 3) -> Callable[[int], Any]:
    return lambda count: _random((count, pixels, pixels, channels))


def _random(shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.random.default_rng(0).random(shape, "float32")


def _labels(shape: tuple[int, ...], classes: int) -> Any:
    import numpy as np

    return np.random.default_rng(1).integers(0, classes, shape).astype("int32")


def _application(name: str, pixels: int) -> Model:
    import keras

    model = getattr(keras.applications, name)(weights=None, input_shape=(pixels, pixels, 3), classes=10)
    images = _images(pixels)
    return model, "sparse_categorical_crossentropy", lambda n: (images(n), _labels((n,), 10))


def _mlp() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((784,))
    for width in (2048, 1024, 512):
        x = layers.Dropout(0.2)(layers.Dense(width, "relu")(x))
    model = keras.Model(inputs, layers.Dense(10, "softmax")(x))
    return model, "sparse_categorical_crossentropy", lambda n: (_random((n, 784)), _labels((n,), 10))


def _autoencoder() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((96, 96, 3))
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    for width in (128, 64, 32):
        x = layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(3, 3, padding="same", activation="sigmoid")(x))
    return model, "mse", lambda n: (_random((n, 96, 96, 3)),) * 2


def _unet(width: int = 16, pixels: int = 96) -> Model:
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = inputs = keras.Input((pixels, pixels, 3))
    skipped = []
    for depth in range(3):
        x = block(x, width << depth)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, width << 3)
    for depth in (2, 1, 0):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skipped.pop()]), width << depth)
    model = keras.Model(inputs, layers.Conv2D(4, 1, activation="softmax", dtype="float32")(x))
    return (
        model,
        "sparse_categorical_crossentropy",
        lambda n: (_random((n, pixels, pixels, 3)), _labels((n, pixels, pixels), 4)),
    )


def _transformer(length: int = 128, width: int = 256, blocks: int = 4, *, masked: bool = False) -> Model:
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(8000, width, mask_zero=masked)(inputs)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(
            *[layers.LayerNormalization()(x)] * 2
        )
        x = layers.Add()([x, attended])
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(wide))])
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax", dtype="float32")(x))
    return (
        model,
        "sparse_categorical_crossentropy",
        lambda n: (_labels((n, length), 8000), _labels((n,), 10)),
    )


def _vision_transformer() -> Model:
    import keras
    from keras import layers

    inputs = keras.Input((96, 96, 3))
    x = layers.Reshape((144, 192))(layers.Conv2D(192, 8, strides=8)(inputs))
    for _ in range(6):
        normal = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(6, 32)(normal, normal)])
        wide = layers.Dense(768, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(192)(wide)])
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))
    return model, "sparse_categorical_crossentropy", lambda n: (_random((n, 96, 96, 3)), _labels((n,), 10))


def _conformer() -> Model:
    import keras
    from keras import layers

    def feed_forward(x: Any) -> Any:
        wide = layers.Dense(512, activation="swish")(layers.LayerNormalization()(x))
        return layers.Add()([x, layers.Rescaling(0.5)(layers.Dropout(0.1)(layers.Dense(128)(wide)))])

    inputs = keras.Input((400, 40))
    x = layers.Conv1D(128, 5, strides=2, padding="same", activation="relu")(inputs)
    for _ in range(4):
        x = feed_forward(x)
        normal = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32)(normal, normal)])
        normal = layers.LayerNormalization()(x)
        gate = layers.Multiply()([layers.Dense(128)(normal), layers.Dense(128, "sigmoid")(normal)])
        near = layers.DepthwiseConv1D(15, padding="same")(gate)
        near = layers.Activation("swish")(layers.BatchNormalization()(near))
        x = layers.LayerNormalization()(feed_forward(layers.Add()([x, layers.Dense(128)(near)])))
    model = keras.Model(inputs, layers.Dense(30, activation="softmax", dtype="float32")(x))
    return (
        model,
        "sparse_categorical_crossentropy",
        lambda n: (_random((n, 400, 40)), _labels((n, 200), 30)),
    )


def _dilated() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((96, 96, 3))
    for width, strides in ((24, 1), (32, 2), (64, 2)):
        x = layers.Conv2D(width, 3, strides=strides, padding="same", activation="relu")(x)
        x = layers.GroupNormalization(8)(x)
    wide = [
        layers.Conv2D(48, 3, padding="same", dilation_rate=rate, activation="relu")(x) for rate in (1, 2, 4)
    ]
    x = layers.Conv2D(64, 1, activation="relu")(layers.Concatenate()(wide))
    x = layers.UpSampling2D(4, interpolation="bilinear")(x)
    model = keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
    return (
        model,
        "binary_crossentropy",
        lambda n: (_random((n, 96, 96, 3)), _labels((n, 96, 96, 1), 2).astype("float32")),
    )


def _recurrent(kind: str, length: int = 64, units: int = 256) -> Model:
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(8000, 128)(inputs)
    layer = getattr(layers, kind)
    x = layer(units, return_sequences=True)(x)
    x = layers.Bidirectional(layer(units // 2))(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax", dtype="float32")(x))
    return (
        model,
        "sparse_categorical_crossentropy",
        lambda n: (_labels((n, length), 8000), _labels((n,), 10)),
    )


def _volumes() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((32, 32, 32, 1))
    for width in (16, 32, 64):
        x = layers.Conv3D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling3D()(x)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling3D()(x)))
    return model, "mse", lambda n: (_random((n, 32, 32, 32, 1)), _random((n, 3)))


def _sounds() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((8000, 1))
    for width in (32, 64, 128, 128):
        x = layers.Conv1D(width, 9, strides=2, padding="same")(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    x = layers.GlobalMaxPooling1D()(x)
    model = keras.Model(inputs, layers.Dense(20, activation="softmax")(x))
    return model, "sparse_categorical_crossentropy", lambda n: (_random((n, 8000, 1)), _labels((n,), 20))


def _two_towers() -> Model:
    import keras
    from keras import layers

    users, items = (
        keras.Input((), dtype="int32", name="user"),
        keras.Input((16,), dtype="int32", name="items"),
    )
    left = layers.Dense(64, "relu")(layers.Embedding(50_000, 64)(users))
    right = layers.GlobalAveragePooling1D()(layers.Embedding(20_000, 64)(items))
    x = layers.Concatenate()([left, layers.Dense(64, "relu")(right)])
    model = keras.Model(
        {"user": users, "items": items}, layers.Dense(1, "sigmoid")(layers.Dense(256, "relu")(x))
    )
    return (
        model,
        "binary_crossentropy",
        lambda n: (
            {"user": _labels((n,), 50_000), "items": _labels((n, 16), 20_000)},
            _labels((n, 1), 2).astype("float32"),
        ),
    )


def _separable() -> Model:
    import keras
    from keras import layers

    x = inputs = keras.Input((96, 96, 3))
    for width in (32, 64, 128, 256):
        x = layers.SeparableConv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)))
    return model, "sparse_categorical_crossentropy", lambda n: (_random((n, 96, 96, 3)), _labels((n,), 10))


def _subclassed() -> Model:
    import keras
    from keras import layers

    class Mixer(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
            self.across = [layers.Dense(128, "gelu"), layers.Dense(144)]
            self.along = [layers.Dense(512, "gelu"), layers.Dense(128)]

        def call(self, x: Any) -> Any:
            y = keras.ops.transpose(self.norms[0](x), (0, 2, 1))
            x = x + keras.ops.transpose(self.across[1](self.across[0](y)), (0, 2, 1))
            return x + self.along[1](self.along[0](self.norms[1](x)))

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = layers.Conv2D(128, 8, strides=8)
            self.mixers = [Mixer() for _ in range(5)]
            self.head = layers.Dense(10, "softmax")

        def call(self, x: Any) -> Any:
            x = keras.ops.reshape(self.patches(x), (-1, 144, 128))
            for mixer in self.mixers:
                x = mixer(x)
            return self.head(keras.ops.mean(x, axis=1))

    model = Net()
    model.build((None, 96, 96, 3))
    return model, "sparse_categorical_crossentropy", lambda n: (_random((n, 96, 96, 3)), _labels((n,), 10))


TUNED: dict[str, Callable[[], Model]] = {
    "MLP": _mlp,
    "autoencoder": _autoencoder,
    "U-Net": _unet,
    "transformer": _transformer,
    "LSTM": lambda: _recurrent("LSTM"),
    "3-D": _volumes,
    "two towers": _two_towers,
    "ResNet50": lambda: _application("ResNet50", 96),
    "MobileNetV2": lambda: _application("MobileNetV2", 96),
    "VGG16": lambda: _application("VGG16", 64),
    "InceptionV3": lambda: _application("InceptionV3", 96),
    "ConvNeXtTiny": lambda: _application("ConvNeXtTiny", 64),
    "vision transformer": _vision_transformer,
}
ASIDE: dict[str, Callable[[], Model]] = {
    "mixer, subclassed": _subclassed,
    "sounds": _sounds,
    "separable": _separable,
    "conformer": _conformer,
    "dilated": _dilated,
    "transformer, masked": lambda: _transformer(96, 192, 3, masked=True),
    "GRU": lambda: _recurrent("GRU"),
    "wide U-Net": lambda: _unet(24, 64),
    "DenseNet121": lambda: _application("DenseNet121", 64),
    "EfficientNetB0": lambda: _application("EfficientNetB0", 96),
    "Xception": lambda: _application("Xception", 96),
    "ResNet50V2": lambda: _application("ResNet50V2", 64),
    "MobileNetV3Small": lambda: _application("MobileNetV3Small", 128),
}

LOOPS = ("LSTM", "GRU")


def build(name: str) -> Model:
    """A model by its name, with the same weights each time."""
    import keras

    keras.utils.set_random_seed(0)
    return {**TUNED, **ASIDE}[name]()
