"""Two epochs of an autoencoder on a data set, streamed within some RAM or loaded as one array."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import memfit

SIDE = 160


def _open(kind: str, path: Path, ram: int) -> Any:
    common: Any = {"batch_size": 16, "ram": ram}
    if kind == "jpeg":
        return memfit.data.from_images(path, size=(SIDE, SIDE), labels="input", dtype="uint8", **common)
    if kind == "tfrecord":
        return memfit.data.from_tfrecords(path, size=(SIDE, SIDE), y="input", dtype="uint8", **common)
    if kind == "memmap":
        return memfit.data.from_arrays(path, "input", **common)
    if kind == "generator":
        rows = np.load(path, mmap_mode="r")
        return memfit.data.from_generator(lambda: ((row, row) for row in rows), length=len(rows), **common)
    if kind == "parquet":
        rows = memfit.data.from_parquet(path, x="x", **common)
        return rows.map(lambda x: (tf.reshape(x, (-1, SIDE, SIDE, 3)),) * 2)
    return memfit.data.from_hdf5(path, x="x", y="input", **common)


def _load(path: Path) -> Any:
    x = np.stack([tf.io.decode_jpeg(file.read_bytes()).numpy() for file in sorted(path.rglob("*.jpg"))])
    return x.astype(np.float32) / 255.0


def _model() -> keras.Model:
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(8, 4, strides=4, activation="relu")(layers.Rescaling(1 / 255)(inputs))
    outputs = layers.Rescaling(255.0)(layers.Conv2DTranspose(3, 4, strides=4)(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("path", type=Path)
    parser.add_argument("--ram", type=int)
    options = parser.parse_args()
    model = _model()
    if options.kind == "array":
        x = _load(options.path)
        history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
    else:
        history = model.fit(_open(options.kind, options.path, options.ram), epochs=2, verbose=0)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"loss": history.history["loss"], "process_peak_bytes": peak}))


if __name__ == "__main__":
    main()
