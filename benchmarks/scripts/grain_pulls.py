"""What grain makes of the same images, in an environment of its own without TensorFlow.

`grain_pulls.py write POOL PATH IMAGES` writes an ArrayRecord, which is grain's own kind of file, and
`grain_pulls.py pull KIND PATH SECONDS` prints figures. Batches stay arrays of NumPy, a copy less than others.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np
from _data_sets import read_pool
from _pulls import pull

BATCH_SIZE = 32
PATIENCE_SECONDS = 300


class Rows:
    """What is reached by index, as grain wants it."""

    def __init__(self, length: int, read: Callable[[int], Any]) -> None:
        self._length, self._read = length, read

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._read(int(index))


def _decoded(encoded: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(encoded)), np.float32)


def _jpegs(path: Path) -> Any:
    paths = sorted(path.rglob("*.jpg"))
    return Rows(len(paths), lambda index: _decoded(paths[index].read_bytes()))


def _records(path: Path) -> Any:
    records = grain.sources.ArrayRecordDataSource(str(path))
    return Rows(len(records), lambda index: _decoded(records[index]))


def _hdf5(path: Path) -> Any:
    import h5py

    rows = h5py.File(path)["x"]
    return Rows(len(rows), lambda index: rows[index])


def _array(path: Path) -> Any:
    rows = np.load(path, mmap_mode="r")
    return Rows(len(rows), lambda index: rows[index])


SOURCES = {"jpeg": _jpegs, "tfrecord": _records, "hdf5": _hdf5, "gzip": _hdf5, "memmap": _array}


def _batches(kind: str, path: Path) -> Any:
    images = grain.MapDataset.source(SOURCES[kind](path)).shuffle(seed=0)
    threads = grain.ReadOptions(num_threads=2 * (os.cpu_count() or 1))
    return images.to_iter_dataset(threads).batch(BATCH_SIZE)


def _write(pool: Path, path: Path, images: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    encoded = read_pool(pool)
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(images):
        writer.write(encoded[number % len(encoded)])
    writer.close()


def main(arguments: list[str]) -> None:
    """Write a file, or pull from one."""
    signal.alarm(PATIENCE_SECONDS)
    if arguments[0] == "write":
        _write(Path(arguments[1]), Path(arguments[2]), int(arguments[3]))
        return
    kind, path, seconds = arguments[1], Path(arguments[2]), float(arguments[3])
    print(json.dumps(pull(lambda: _batches(kind, path), seconds)), flush=True)
    os._exit(0)  # grain's threads need not end


if __name__ == "__main__":
    main(sys.argv[1:])
