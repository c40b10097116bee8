"""Ways to feed folders of images whose sizes differ, resized to one: by hand, by Keras, and memfit's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from _data_sets import BATCH_SIZE, MIXED, MixedSizes
from _pulls import Batches

Method = Callable[[Path], Batches]


def _resized_by_keras(folder: Path, kind: MixedSizes) -> Batches:
    import keras

    size = (kind.size, kind.size)
    return keras.utils.image_dataset_from_directory(
        folder, labels=None, image_size=size, batch_size=BATCH_SIZE, seed=0, verbose=False
    )


def _resized_by_tf_data(folder: Path, kind: MixedSizes, *, skips: bool = False) -> Batches:
    import tensorflow as tf

    decode = tf.io.decode_jpeg if kind.suffix == "jpg" else tf.io.decode_png

    def load(path: Any) -> Any:
        return tf.image.resize(decode(tf.io.read_file(path), channels=3), (kind.size, kind.size))

    paths = sorted(str(path) for path in folder.rglob(f"*.{kind.suffix}"))
    images = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(load, tf.data.AUTOTUNE)
    images = images.ignore_errors() if skips else images
    return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _resized_by_memfit(folder: Path, kind: MixedSizes, on_error: Any = "raise") -> Batches:
    import memfit.data

    return memfit.data.from_images(folder, size=(kind.size, kind.size), on_error=on_error, ram="1GiB")


def _mixed_methods(kind: MixedSizes) -> dict[str, Method]:
    return {
        "keras": lambda folder: _resized_by_keras(folder, kind),
        "tf.data": lambda folder: _resized_by_tf_data(folder, kind),
        "memfit 1GiB": lambda folder: _resized_by_memfit(folder, kind),
    }


def _skipping_methods(kind: MixedSizes) -> dict[str, Method]:
    return {
        "tf.data, skipping": lambda folder: _resized_by_tf_data(folder, kind, skips=True),
        "memfit, skipping": lambda folder: _resized_by_memfit(folder, kind, "skip"),
    }


MIXED_METHODS = {name: _mixed_methods(kind) for name, kind in MIXED.items()}
MIXED_METHODS["mixed-jpeg"] |= _skipping_methods(MIXED["mixed-jpeg"])
