"""Images as people keep them: JPEGs, PNGs, TFRecords, HDF5 and arrays, made from a few hundred.

The few are smooth noise, JPEGs of 160 pixels and 8 to 12 KB unless their sizes are mixed; every data set
repeats them, each time in files or rows of their own, so that the page cache has as much to hold as it would
with real ones.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIXELS = 160
BATCH_SIZE = 32
DISTINCT = 256
IMAGE_BYTES = PIXELS * PIXELS * 3
IN_FOLDER = 1000
SHARDS = 16
_BLOCK = 512


@dataclass(frozen=True)
class MixedSizes:
    """A folder of images whose sides differ, all of them resized to one size."""

    suffix: str
    sides: tuple[int, int]  # the smallest and the largest
    size: int  # what they become, each way
    images: int
    distinct: int = DISTINCT


MIXED = {
    "mixed-jpeg": MixedSizes("jpg", (120, 260), 128, 20_000),
    "mixed-png": MixedSizes("png", (120, 260), 128, 6_000, 128),
    "small-jpeg": MixedSizes("jpg", (24, 48), 32, 40_000),
    "small-png": MixedSizes("png", (24, 48), 32, 40_000),
    "large-jpeg": MixedSizes("jpg", (1500, 2500), 224, 400, 16),
    "large-png": MixedSizes("png", (1500, 2500), 224, 80, 8),
}
_CELLS, _NOISE, _QUALITY = 20, 8.0, 85


def make_pool(folder: Path) -> None:
    """The few images that all data sets repeat, as JPEGs."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(DISTINCT):
        cells = random.integers(0, 256, (_CELLS, _CELLS, 3), np.uint8)
        smooth = Image.fromarray(cells).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + random.normal(0, _NOISE, (PIXELS, PIXELS, 3))
        image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
        image.save(folder / f"{number:03}.jpg", quality=_QUALITY)


def _mixed_pool(kind: MixedSizes) -> list[bytes]:
    """Images of mixed sizes, encoded."""
    import numpy as np
    from PIL import Image

    random, found = np.random.default_rng(0), []
    for height, width in random.integers(kind.sides[0], kind.sides[1] + 1, (kind.distinct, 2)).tolist():
        cells = random.integers(0, 256, (_CELLS, _CELLS, 3), np.uint8)
        smooth = Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + random.normal(0, _NOISE, (height, width, 3))
        file = io.BytesIO()
        image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
        image.save(file, "JPEG" if kind.suffix == "jpg" else "PNG", quality=_QUALITY)
        found.append(file.getvalue())
    return found


def read_pool(folder: Path) -> list[bytes]:
    """The few images, encoded."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def make(kind: str, pool: Path, path: Path, images: int) -> int:
    """Write a data set of so many images to a path, down to the disk; how many bytes it has."""
    if kind in MIXED:
        _make_files(_mixed_pool(MIXED[kind]), path, images, MIXED[kind].suffix)
    else:
        _MAKERS[kind](read_pool(pool), path, images)
    os.sync()  # or it would be written while others are measured
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _decoded(encoded: list[bytes]) -> Any:
    import numpy as np
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in encoded])


def _blocks(pool: Any, images: int) -> Iterator[tuple[int, Any]]:
    """Where blocks of a large array begin, and what is in them."""
    import numpy as np

    for begin in range(0, images, _BLOCK):
        yield begin, pool[np.arange(begin, min(begin + _BLOCK, images)) % len(pool)]


def _make_files(pool: list[bytes], path: Path, images: int, suffix: str = "jpg") -> None:
    for number in range(images):
        folder = path / f"{number // IN_FOLDER:03}"
        if number % IN_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"{number:06}.{suffix}").write_bytes(pool[number % len(pool)])


def _make_records(pool: list[bytes], path: Path, images: int) -> None:
    import tensorflow as tf

    def example(encoded: bytes) -> bytes:
        image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
        return bytes(
            tf.train.Example(features=tf.train.Features(feature={"image": image})).SerializeToString()
        )

    path.mkdir()
    examples = [example(encoded) for encoded in pool]
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(path / f"images-{shard:05}-of-{SHARDS:05}.tfrecord")) as writer:
            for number in range(shard, images, SHARDS):
                writer.write(examples[number % len(examples)])


def _make_hdf5(pool: list[bytes], path: Path, images: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        rows = file.create_dataset("x", (images, PIXELS, PIXELS, 3), "uint8")
        for begin, block in _blocks(_decoded(pool), images):
            rows[begin : begin + len(block)] = block


def _make_gzip(pool: list[bytes], path: Path, images: int) -> None:
    """A chunk for each image; without the lower bits, which nothing compresses, it has half the size."""
    import h5py

    chunks = [zlib.compress((image & 0xF0).tobytes(), 4) for image in _decoded(pool)]
    shape = (PIXELS, PIXELS, 3)
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("x", (images, *shape), "uint8", chunks=(1, *shape), compression="gzip")
        for number in range(images):
            rows.id.write_direct_chunk((number, 0, 0, 0), chunks[number % len(chunks)])


def _make_array(pool: list[bytes], path: Path, images: int) -> None:
    import numpy as np

    rows = np.lib.format.open_memmap(path, "w+", np.uint8, (images, PIXELS, PIXELS, 3))
    for begin, block in _blocks(_decoded(pool), images):
        rows[begin : begin + len(block)] = block
    rows.flush()


_MAKERS: dict[str, Callable[[list[bytes], Path, int], None]] = {
    "jpeg": _make_files,
    "tfrecord": _make_records,
    "hdf5": _make_hdf5,
    "gzip": _make_gzip,
    "memmap": _make_array,
}
FILES = {"jpeg": "jpegs", "tfrecord": "records", "hdf5": "x.h5", "gzip": "gzip.h5", "memmap": "x.npy"}
FILES |= {kind: kind for kind in MIXED}
