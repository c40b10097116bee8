"""Shards of a pack: each file is written under a temporary name and gets its own once it is whole."""

from __future__ import annotations

import io
import os
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from memfit.core.errors import CannotWrite, InvalidRecord
from memfit.data.manifest import FinishedShard, Format, Shard, Skipped
from memfit.data.stream.unreadable_samples import first_line

SUFFIXES = {"tfrecord": ".tfrecord", "hdf5": ".rows"}
INDEX, DONE, TEMPORARY = ".index.npy", ".done.json", ".tmp"
# A frame of a TFRecord: the length and its checksum before the data, the checksum of the data after it.
HEADER_BYTES, FOOTER_BYTES = 12, 4

_KEPT = "Shards that are whole are kept: the same command goes on with the others."


class Payload(NamedTuple):
    """The bytes of an element, and their checksum."""

    data: bytes
    crc32: int


def shard_name(number: int, format: Format) -> str:  # noqa: A002
    """The file name of a shard."""
    return f"shard-{number:05d}{SUFFIXES[format]}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say where, if something cannot be written, and that nothing is lost."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error), kept=_KEPT) from error
    except tf.errors.OpError as error:
        raise CannotWrite(str(path), first_line(error).rpartition("; ")[2], kept=_KEPT) from error


def write_whole(path: Path, data: bytes) -> None:
    """A small file, whole or not at all."""
    temporary = path.with_name(path.name + TEMPORARY)
    with writing(path):
        try:
            temporary.write_bytes(data)
            put_in_place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a file its name once the disk has all of it."""
    for place in (temporary, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if place is temporary:
            temporary.replace(path)


class ShardWriter:
    """Writes the records of one shard, inside `with`; no file stays behind unless the shard is finished.

    Python calls `__exit__` only for what happens inside the block. So the file is made there too, by `open`:
    Ctrl-C may come at any moment, also right before the block begins.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._temporary = folder / (name + TEMPORARY)
        self._index, self._offset = array("q"), 0
        self._frame_bytes = HEADER_BYTES + FOOTER_BYTES if name.endswith(".tfrecord") else 0
        self._file: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()

    def open(self) -> None:
        """Make the temporary file."""
        with writing(self._path):
            self._file = _open(self._temporary)

    def write(self, payload: Payload) -> None:
        """Add a record."""
        with writing(self._path):
            self._file.write(payload.data)
        self._index.extend((self._offset, len(payload.data), payload.crc32))
        self._offset += len(payload.data) + self._frame_bytes

    def finish(self, skipped: list[Skipped]) -> FinishedShard:
        """Put the shard in its place, then say that it is whole."""
        with writing(self._path):
            self._file.close()
            index = index_file(np.frombuffer(self._index, np.int64).reshape(-1, 3))
            write_whole(index_path(self._path), index)
            put_in_place(self._temporary, self._path)
        shard = Shard(self._path.name, len(self._index) // 3, self._offset, zlib.crc32(index))
        finished = FinishedShard(shard, tuple(skipped))
        write_whole(done_path(self._path), finished.to_json().encode())
        return finished

    def _discard(self) -> None:
        self._temporary.unlink(missing_ok=True)  # first of all: closing may fail, or be interrupted
        if self._file is not None:
            with suppress(OSError, tf.errors.OpError):  # the error that stopped the writer is raised already
                self._file.close()


def _open(path: Path) -> Any:
    return tf.io.TFRecordWriter(str(path)) if ".tfrecord" in path.name else path.open("wb")


def index_file(rows: npt.NDArray[np.int64]) -> bytes:
    """The file of an index: offset, length and checksum of each record."""
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def index_path(path: Path) -> Path:
    """The path of a shard's index."""
    return path.with_name(path.name.partition(".")[0] + INDEX)


def done_path(path: Path) -> Path:
    """The path of the file that marks a shard as whole."""
    return path.with_name(path.name.partition(".")[0] + DONE)


def find_finished(path: Path) -> FinishedShard | None:
    """A shard of an earlier attempt that is whole; None if it has to be written anew."""
    try:
        found = FinishedShard.from_json(done_path(path).read_text(encoding="utf-8"))
    except (OSError, InvalidRecord, UnicodeDecodeError):
        return None
    return None if what_is_wrong(path.parent, found.shard) else found


def what_is_wrong(folder: Path, shard: Shard) -> str | None:
    """Whether a shard is not what was written, by its size and its index alone."""
    path = folder / shard.name
    try:
        size, index = path.stat().st_size, index_path(path).read_bytes()
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    if size != shard.bytes:
        return f"{size:,} bytes instead of {shard.bytes:,}"
    return None if zlib.crc32(index) == shard.crc32 else f"{index_path(path).name} is not what was written"
