"""Ways to feed images to training, as people write them by hand, and memfit's.

Each is a function of the path that gives batches of 32 in random order: float32 of images and TFRecords,
since `image_dataset_from_directory` knows nothing else, and uint8 of HDF5 and arrays, as they are kept.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from _data_sets import BATCH_SIZE, IMAGE_BYTES, MIXED, PIXELS
from _mixed_methods import MIXED_METHODS
from _pulls import Batches, Use, pull

DTYPES = {"jpeg": "float32", "tfrecord": "float32", "hdf5": "uint8", "gzip": "uint8", "memmap": "uint8"}
DTYPES |= dict.fromkeys(MIXED, "float32")
RECORDS_SHUFFLED = 4096  # encoded, which is 40 MB
THREADS = 4
BUDGETS = {"256MiB": 256 << 20, "1GiB": 1 << 30}
MEASURED_ONCE = ("array", "generator", "grain")  # they take long to begin, or are never the fastest
PATIENCE_SECONDS = 300

Method = Callable[[Path], Batches]


def measure(kind: str, name: str, path: Path, seconds: float, is_training: bool) -> dict[str, Any]:
    """Figures of one method; for a process of its own."""
    import tensorflow as tf

    signal.alarm(PATIENCE_SECONDS)  # no method may keep the others waiting
    tf.reduce_sum(tf.random.uniform((8, 8))).numpy()  # the runtime starts with the first operation
    use = _trainer(DTYPES[kind], _side(kind)) if is_training else None
    found = pull(lambda: METHODS[kind][name](path), seconds, use)
    wanted = {"dtype": DTYPES[kind], "shape": [BATCH_SIZE, _side(kind), _side(kind), 3]}
    given = {key: found.pop(key) for key in wanted}
    if given != wanted:
        raise RuntimeError(f"expected batches of {wanted}, received {given}")
    return found


def _side(kind: str) -> int:
    return MIXED[kind].size if kind in MIXED else PIXELS


def _trainer(dtype: str, side: int) -> Use:
    """One step of a tiny autoencoder."""
    import keras
    from keras import layers

    inputs = keras.Input((side, side, 3), dtype=dtype)
    x = wanted = layers.Rescaling(1 / 255)(inputs)
    x = layers.Conv2D(8, 5, strides=4, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(3, 5, strides=4, padding="same", activation="sigmoid")(x)
    model = keras.Model(inputs, layers.Subtract()([x, wanted]))
    model.compile("sgd", lambda _, difference: keras.ops.mean(difference**2))
    return lambda batch: model.train_on_batch(batch, batch)


# Indices and files in random order.


def _permutations(count: int) -> Any:
    """A dataset of indices, in a new random order each epoch."""
    import tensorflow as tf

    return tf.data.Dataset.range(count).shuffle(count)


def _shuffled(count: int) -> list[int]:
    import numpy as np

    return list(np.random.default_rng().permutation(count).tolist())


def _paths(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.jpg"))


def _shards(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.tfrecord"))


# What is common to several ways.


def _from_generator(images: Callable[[], Iterator[Any]], dtype: str) -> Batches:
    import tensorflow as tf

    spec = tf.TensorSpec((PIXELS, PIXELS, 3), dtype)
    return tf.data.Dataset.from_generator(images, output_signature=spec).batch(BATCH_SIZE).prefetch(2)


def _from_batch_generator(batches: Callable[[], Iterator[Any]]) -> Batches:
    import tensorflow as tf

    spec = tf.TensorSpec((None, PIXELS, PIXELS, 3), tf.uint8)
    return tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(tf.data.AUTOTUNE)


def _from_read(read: Callable[[Any], Any], count: int) -> Batches:
    """Batches of indices, each read by a function of Python, several at once."""
    import tensorflow as tf

    def batch(indices: Any) -> Any:
        found = tf.numpy_function(read, [indices], tf.uint8, stateful=False)
        return tf.ensure_shape(found, (None, PIXELS, PIXELS, 3))

    batches = _permutations(count).batch(BATCH_SIZE)
    return batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _from_array(array: Any, dtype: str) -> Batches:
    """An array in memory, as `model.fit` takes it: in one tensor, of which batches are gathered."""
    import tensorflow as tf

    whole = tf.constant(array)
    batches = _permutations(len(array)).batch(BATCH_SIZE)
    batches = batches.map(lambda indices: tf.cast(tf.gather(whole, indices), dtype), tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def _decoded(encoded: Any) -> Any:
    import tensorflow as tf

    return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=3), (PIXELS, PIXELS, 3))


def _collected(images: Any, count: int) -> Any:
    """All images of a dataset in one array."""
    import numpy as np

    _check_room(count)
    whole = np.empty((count, PIXELS, PIXELS, 3), np.uint8)
    for number, image in enumerate(images.as_numpy_iterator()):
        whole[number] = image
    return whole


def _check_room(count: int) -> None:
    """An array is copied once on its way into a tensor; a machine too small for this shall not swap."""
    needed, available = 2 * count * IMAGE_BYTES, psutil.virtual_memory().available
    if needed > 0.8 * available:
        raise MemoryError(f"needs {needed >> 20:,} MiB, and {available >> 20:,} MiB are available")


# A folder of JPEGs.


def _jpegs_in_memory(folder: Path) -> Batches:
    import tensorflow as tf

    paths = _paths(folder)
    images = tf.data.Dataset.from_tensor_slices(paths).map(
        lambda path: _decoded(tf.io.read_file(path)), tf.data.AUTOTUNE
    )
    return _from_array(_collected(images, len(paths)), "float32")


def _jpegs_by_generator(folder: Path) -> Batches:
    import numpy as np
    from PIL import Image

    paths = _paths(folder)

    def images() -> Iterator[Any]:
        for index in _shuffled(len(paths)):
            yield np.asarray(Image.open(paths[index]), np.float32)

    return _from_generator(images, "float32")


def _jpegs_by_keras(folder: Path) -> Batches:
    import keras

    return keras.utils.image_dataset_from_directory(
        folder, labels=None, image_size=(PIXELS, PIXELS), batch_size=BATCH_SIZE, seed=0, verbose=False
    )


def _jpegs_by_tf_data(folder: Path) -> Batches:
    import tensorflow as tf

    def load(path: Any) -> Any:
        return tf.cast(_decoded(tf.io.read_file(path)), tf.float32)

    paths = _paths(folder)
    images = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(load, tf.data.AUTOTUNE)
    return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _jpegs_by_memfit(folder: Path, ram: str) -> Batches:
    import memfit.data

    return memfit.data.from_images(folder, size=(PIXELS, PIXELS), dtype="float32", ram=ram)


# TFRecords.


def _parsed(example: Any) -> Any:
    import tensorflow as tf

    features = tf.io.parse_single_example(example, {"image": tf.io.FixedLenFeature([], tf.string)})
    return _decoded(features["image"])


def _records_in_memory(folder: Path) -> Batches:
    import tensorflow as tf

    examples = tf.data.TFRecordDataset(_shards(folder))
    count = int(examples.reduce(0, lambda count, _: count + 1))
    return _from_array(_collected(examples.map(_parsed, tf.data.AUTOTUNE), count), "float32")


def _records_by_generator(folder: Path) -> Batches:
    import numpy as np
    import tensorflow as tf
    from PIL import Image

    shards = _shards(folder)

    def images() -> Iterator[Any]:
        files = [shards[index] for index in _shuffled(len(shards))]
        for record in tf.data.TFRecordDataset(files).shuffle(RECORDS_SHUFFLED).as_numpy_iterator():
            encoded = tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]
            yield np.asarray(Image.open(io.BytesIO(encoded)), np.float32)

    return _from_generator(images, "float32")


def _records_by_tf_data(folder: Path) -> Batches:
    import tensorflow as tf

    shards = _shards(folder)
    files = tf.data.Dataset.from_tensor_slices(shards).shuffle(len(shards))
    records = files.interleave(
        tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    ).shuffle(RECORDS_SHUFFLED)
    images = records.map(lambda record: tf.cast(_parsed(record), tf.float32), tf.data.AUTOTUNE)
    return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _records_by_memfit(folder: Path, ram: str) -> Batches:
    import memfit.data

    return memfit.data.from_tfrecords(folder, size=(PIXELS, PIXELS), dtype="float32", ram=ram)


# HDF5, contiguous or compressed.


def _hdf5_in_memory(path: Path) -> Batches:
    import h5py

    with h5py.File(path) as file:
        _check_room(len(file["x"]))
        return _from_array(file["x"][:], "uint8")


def _hdf5_by_generator(path: Path) -> Batches:
    import h5py

    rows = h5py.File(path)["x"]
    return _from_generator(lambda: (rows[index] for index in _shuffled(len(rows))), "uint8")


def _hdf5_by_batches(path: Path) -> Batches:
    import h5py

    rows = h5py.File(path)["x"]

    def batches() -> Iterator[Any]:
        order = _shuffled(len(rows))
        for begin in range(0, len(order), BATCH_SIZE):
            yield _rows_of(rows, order[begin : begin + BATCH_SIZE])

    return _from_batch_generator(batches)


def _hdf5_by_threads(path: Path) -> Batches:
    import h5py

    rows = h5py.File(path)["x"]
    return _from_read(lambda indices: _rows_of(rows, indices.tolist()), len(rows))


def _rows_of(rows: Any, indices: list[int]) -> Any:
    """One at a time into an array, which takes h5py less time than a list of them."""
    import numpy as np

    found = np.empty((len(indices), *rows.shape[1:]), rows.dtype)
    for place, index in enumerate(indices):
        rows.read_direct(found, np.s_[index], np.s_[place])
    return found


def _hdf5_by_memfit(path: Path, ram: str) -> Batches:
    import memfit.data

    return memfit.data.from_hdf5(path, x="x", ram=ram)


# A mapped array.


def _array_in_memory(path: Path) -> Batches:
    import numpy as np

    _check_room(len(np.load(path, mmap_mode="r")))
    return _from_array(np.load(path), "uint8")


def _array_by_generator(path: Path) -> Batches:
    import numpy as np

    rows = np.load(path, mmap_mode="r")
    return _from_generator(lambda: (rows[index] for index in _shuffled(len(rows))), "uint8")


def _array_by_slices(path: Path) -> Batches:
    import numpy as np
    import tensorflow as tf

    rows = np.load(path, mmap_mode="r")
    _check_room(len(rows))
    images = tf.data.Dataset.from_tensor_slices(rows).shuffle(RECORDS_SHUFFLED)
    return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _array_by_tf_data(path: Path) -> Batches:
    import numpy as np

    rows = np.load(path, mmap_mode="r")
    return _from_read(lambda indices: rows[indices], len(rows))


def _array_by_memfit(path: Path, ram: str) -> Batches:
    import memfit.data

    return memfit.data.from_arrays(path, ram=ram)


def _with_memfit(methods: dict[str, Method], ours: Callable[[Path, str], Batches]) -> dict[str, Method]:
    ways = {f"memfit {ram}": (lambda path, ram=ram: ours(path, ram)) for ram in BUDGETS}
    return {**methods, **ways}


_HDF5: dict[str, Method] = {
    "array": _hdf5_in_memory,
    "generator": _hdf5_by_generator,
    "tf.data, batches": _hdf5_by_batches,
    "tf.data, threads": _hdf5_by_threads,
}
METHODS: dict[str, dict[str, Method]] = {
    "jpeg": _with_memfit(
        {
            "array": _jpegs_in_memory,
            "generator": _jpegs_by_generator,
            "keras": _jpegs_by_keras,
            "tf.data": _jpegs_by_tf_data,
        },
        _jpegs_by_memfit,
    ),
    "tfrecord": _with_memfit(
        {"array": _records_in_memory, "generator": _records_by_generator, "tf.data": _records_by_tf_data},
        _records_by_memfit,
    ),
    "hdf5": _with_memfit(_HDF5, _hdf5_by_memfit),
    "gzip": _with_memfit(_HDF5, _hdf5_by_memfit),
    "memmap": _with_memfit(
        {
            "array": _array_in_memory,
            "generator": _array_by_generator,
            "tf.data, slices": _array_by_slices,
            "tf.data": _array_by_tf_data,
        },
        _array_by_memfit,
    ),
}
METHODS |= MIXED_METHODS
