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

from memfit.core.errors import DamagedCheckpoint

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
    """The JSON data and the arrays of a checkpoint; raises DamagedCheckpoint unless every byte is right."""
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


_ARRAY, _TUPLE, _DICTIONARY, _SCALAR = "array", "tuple", "dictionary", "scalar"


class NotPlain(TypeError):
    """A value that is more than data."""


def encode(value: Any, arrays: dict[str, Array], name: str) -> Any:
    """A value as JSON; arrays in it go into `arrays`, under names that begin with `name`."""
    if value is None or (isinstance(value, bool | str | int | float) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.generic):
        return {_SCALAR: [value.dtype.name, value.item()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV":
        arrays[name] = value
        return {_ARRAY: name}
    if type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}/{place}") for place, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if type(value) is dict:
        pairs = [
            [encode(key, arrays, f"{name}/key"), encode(item, arrays, f"{name}/{key}")]
            for key, item in value.items()
        ]
        return {_DICTIONARY: pairs}
    raise NotPlain(f"{name} is a {type(value).__name__}")


def decode(value: Any, arrays: dict[str, Array]) -> Any:
    """The value that was encoded."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == _ARRAY:
        return arrays[held]
    if kind == _TUPLE:
        return tuple(decode(item, arrays) for item in held)
    if kind == _SCALAR:
        return np.dtype(held[0]).type(held[1])
    return {decode(key, arrays): decode(item, arrays) for key, item in held}
