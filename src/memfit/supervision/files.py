"""A checkpoint in a file: arrays one after the other, what they are behind them, checksums over all of it.

What a checkpoint says comes last, so that it is written in one pass with no more than one array in memory,
and a file that was cut off anywhere has no end. A file appears under its name only when it is whole.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from memfit.errors import DamagedCheckpoint

Array = np.ndarray[Any, Any]

_MAGIC = b"memfit checkpoint 1\n"
_END = struct.Struct("<QQI20s")  # where the contents begin, their length, their checksum, the magic again
_BLOCK = 1 << 22


def write_checkpoint(path: Path, says: Mapping[str, Any], arrays: Iterable[tuple[str, Array]]) -> int:
    """Write named arrays and what there is to say about them, all or nothing; how many bytes it takes.

    They are on the disk, and not only on the way there, when this returns.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            size = _write(file, says, arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _write(file: IO[bytes], says: Mapping[str, Any], arrays: Iterable[tuple[str, Array]]) -> int:
    file.write(_MAGIC)
    rows = []
    for name, array in arrays:
        flat = np.ascontiguousarray(array)
        at, checksum = file.tell(), 0
        view = flat.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), _BLOCK):
            checksum = zlib.crc32(view[start : start + _BLOCK], checksum)
            file.write(view[start : start + _BLOCK])
        rows.append([name, flat.dtype.name, list(array.shape), at, flat.nbytes, checksum])
    at = file.tell()
    contents = json.dumps({"says": says, "arrays": rows}, allow_nan=True).encode()
    file.write(contents)
    file.write(_END.pack(at, len(contents), zlib.crc32(contents), _MAGIC))
    return file.tell()


def _sync_folder(folder: Path) -> None:
    """Have the name on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What a checkpoint says, and its arrays by name; raises DamagedCheckpoint unless every byte is right."""
    with path.open("rb") as file:
        contents = _contents(path, file)
        return contents["says"], {row[0]: _read_array(path, file, *row) for row in contents["arrays"]}


def _contents(path: Path, file: IO[bytes]) -> dict[str, Any]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DamagedCheckpoint(path, "it does not begin like one")
    if size < len(_MAGIC) + _END.size:
        raise DamagedCheckpoint(path, f"it has no end after {size} bytes")
    file.seek(size - _END.size)
    at, length, checksum, magic = _END.unpack(file.read(_END.size))
    if magic != _MAGIC or at + length + _END.size != size:
        raise DamagedCheckpoint(path, f"it has no end after {size} bytes")
    file.seek(at)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise DamagedCheckpoint(path, "its table of contents is not what was written")
    contents: dict[str, Any] = json.loads(text)
    return contents


def _read_array(
    path: Path,
    file: io.BufferedReader,
    name: str,
    dtype: str,
    shape: list[int],
    at: int,
    size: int,
    checksum: int,
) -> Array:
    flat = np.empty(size, np.uint8)
    file.seek(at)
    read = file.readinto(flat.data)
    if read != size or zlib.crc32(flat.data) != checksum:
        raise DamagedCheckpoint(path, f"{name} is not what was written")
    return flat.view(_dtype(dtype)).reshape(shape)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and the like, which TensorFlow brings
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
