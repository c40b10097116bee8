"""The places of all records of a data set, and a source that reads records by them.

Records are found once by their headers, or taken from the index files of a pack.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from memfit.core import cache
from memfit.core.errors import NoData
from memfit.core.serialization import Record
from memfit.data.manifest import Pack, Shard
from memfit.data.reading.files import Names, shown
from memfit.data.stream.source import Array, Indices, Spec, Unreadable
from memfit.data.tfrecord.checksums import all_match, masked_checksums
from memfit.data.tfrecord.record_frames import FRAME_BYTES, HEADER_BYTES, Frames, find_frames, opened

logger = logging.getLogger("memfit")

_THREADS = 8


class RecordPlace(NamedTuple):
    """Which file a record is in, its number there, where it begins, and the length of its data."""

    file: int
    number: int
    offset: int
    length: int


class RecordIndex:
    """The records of some files, one after the other, in eight bytes each.

    Behind the records of a damaged file comes one more, which stands for all that is lost.
    """

    def __init__(self, names: Names, frames: Sequence[Frames]) -> None:
        self.names = names
        self._damages = {file: found.damage for file, found in enumerate(frames) if found.damage is not None}
        all_lengths = [_with_the_lost(found) for found in frames]
        self._ends = np.cumsum(np.concatenate(all_lengths) + FRAME_BYTES)
        self._firsts = np.cumsum([0, *map(len, all_lengths)])[:-1]

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def held_bytes(self) -> int:
        """The bytes that the index takes in memory."""
        return int(self._ends.nbytes + self._firsts.nbytes) + self.names.held_bytes

    def mean_of_the_largest(self, count: int) -> int:
        """The mean bytes of a record in the worst block of so many."""
        sizes = np.diff(self._ends, prepend=0)
        largest = np.partition(sizes, -count)[-count:] if count < len(sizes) else sizes
        return int(np.ceil(largest.mean()))

    def places(self, indices: Indices) -> list[RecordPlace]:
        """The places of the records with these indices."""
        files = np.searchsorted(self._firsts, indices, "right") - 1
        firsts = self._firsts[files]
        begins = self._begins(indices)
        columns = (files, indices - firsts, begins - self._begins(firsts), self._ends[indices] - begins)
        return [
            RecordPlace(file, number, offset, size - FRAME_BYTES)
            for file, number, offset, size in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _begins(self, indices: Indices) -> Indices:
        return np.where(indices > 0, self._ends[indices - 1], 0)

    def name(self, place: RecordPlace) -> str:
        """The name of a record: its file, its number and its first byte."""
        return f"{shown(self.names[place.file])}, record {place.number:,} (byte {place.offset:,})"

    def lost(self, place: RecordPlace) -> Unreadable:
        """Why a place holds no record."""
        return Unreadable(self.name(place), str(self._damages[place.file]))

    def first_lost(self) -> Unreadable | None:
        """The error for the first damaged file; None if all are sound."""
        if not self._damages:
            return None
        behind = [*self._firsts[1:].tolist(), len(self)]
        (place,) = self.places(np.array([behind[min(self._damages)] - 1]))
        return self.lost(place)


def _with_the_lost(frames: Frames) -> Indices:
    """Lengths, and one more that takes no room in the file if something is lost."""
    return frames.lengths if frames.damage is None else np.append(frames.lengths, -FRAME_BYTES)


@dataclass(frozen=True)
class FrameList(Record):
    """The record lengths and damages of some files, kept until one of the files changes."""

    counts: tuple[int, ...]  # records of each file
    lengths: str  # of all records: int64, compressed, in base64
    damages: tuple[str | None, ...]  # what is wrong behind the last record of each file


def find_index(names: Names) -> RecordIndex:
    """The records of uncompressed files; finding them costs nothing the second time."""
    key = _key(names)
    kept = cache.recall(FrameList, key)
    frames = None if kept is None else _unpacked(kept, len(names))
    if frames is None:
        with ThreadPoolExecutor(_THREADS) as threads:
            frames = list(threads.map(find_frames, names))
        cache.keep(key, _packed(frames))
    return RecordIndex(names, frames)


def _key(names: Names) -> str:
    found = hashlib.sha256()
    for name in names:
        path = Path(os.fsdecode(name)).absolute()
        state = path.stat()
        found.update(os.fsencode(path) + f"\0{state.st_size} {state.st_mtime_ns}\0".encode())
    return found.hexdigest()[:32]


def _packed(frames: Sequence[Frames]) -> FrameList:
    lengths = np.concatenate([found.lengths for found in frames]).astype("<i8")
    return FrameList(
        counts=tuple(len(found.lengths) for found in frames),
        lengths=base64.b64encode(zlib.compress(lengths.tobytes(), 1)).decode(),
        damages=tuple(found.damage for found in frames),
    )


def _unpacked(kept: FrameList, files: int) -> list[Frames] | None:
    """The frames that were kept; None if the list is damaged or has another number of files."""
    try:
        lengths = np.frombuffer(zlib.decompress(base64.b64decode(kept.lengths)), "<i8").astype(np.int64)
    except (ValueError, zlib.error):
        return None
    if len(lengths) != sum(kept.counts) or not len(kept.counts) == len(kept.damages) == files:
        return None
    parts = np.split(lengths, np.cumsum(kept.counts)[:-1])
    return [Frames(part, damage) for part, damage in zip(parts, kept.damages, strict=True)]


def pack_index(folder: Path, pack: Pack) -> RecordIndex:
    """The records of a pack, by its index files."""
    return RecordIndex(
        Names(os.fsencode(folder / shard.name) for shard in pack.shards),
        [_shard_frames(folder / shard.name, shard) for shard in pack.shards],
    )


def _shard_frames(path: Path, shard: Shard) -> Frames:
    if not path.is_file():
        raise NoData(
            path.parent,
            expected=f"{shard.name} with {shard.elements:,} records, as its manifest says",
            found="no such file",
            suggestion="copy the pack again, or write it again with memfit pack",
        )
    lengths = _indexed_lengths(path.with_suffix(".index.npy"), shard)
    if lengths is None:
        logger.warning("the index of %s is missing or damaged; the file itself is searched", path)
        return find_frames(os.fsencode(path))
    return Frames(lengths, None)


def _indexed_lengths(path: Path, shard: Shard) -> Indices | None:
    """The lengths in an index file; None if it is not the one that the manifest speaks of."""
    try:
        written = path.read_bytes()
        if zlib.crc32(written) != shard.crc32:
            return None
        index = np.load(io.BytesIO(written), allow_pickle=False)
    except (OSError, ValueError):
        return None
    offsets, lengths = index[:, 0], index[:, 1].astype(np.int64)
    is_gapless = np.array_equal(offsets, np.cumsum(lengths + FRAME_BYTES) - lengths - FRAME_BYTES)
    return lengths if is_gapless and len(lengths) == shard.elements else None


class RecordFiles:
    """Serialised records; what is read is checked as TensorFlow would check it."""

    def __init__(self, index: RecordIndex) -> None:
        self.specs: tuple[Spec, ...] = (Spec(tf.string),)
        self.index = index
        self.length = len(index)

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """The data of records, file by file in the order of their offsets."""
        distinct, where = np.unique(indices, return_inverse=True)
        places = self.index.places(distinct)
        frames: list[bytes] = []
        for file, together in groupby(places, key=itemgetter(0)):
            frames += self._frames(self.index.names[file], list(together))
        self._check(frames, places)
        records = [frame[HEADER_BYTES:-4] for frame in frames]
        found = np.empty(len(records), object)
        found[:] = records
        return (found[where],)

    def _check(self, frames: list[bytes], places: list[RecordPlace]) -> None:
        """Raise the first record that does not match its checksum."""
        checksums = np.frombuffer(b"".join([frame[-4:] for frame in frames]), "<u4")
        sizes = [len(frame) - FRAME_BYTES for frame in frames]
        views = map(np.frombuffer, frames, repeat(np.uint8), sizes, repeat(HEADER_BYTES))
        if all_match(list(views), checksums):
            return
        is_right = masked_checksums([frame[HEADER_BYTES:-4] for frame in frames]) == checksums
        for number in np.flatnonzero(~is_right).tolist():
            raise Unreadable(self.index.name(places[number]), "its data do not match their checksum")

    def _frames(self, path: bytes, places: list[RecordPlace]) -> list[bytes]:
        try:
            with opened(path) as descriptor:
                return [self._frame(descriptor, place) for place in places]
        except OSError as error:
            raise Unreadable(self.index.name(places[0]), error.strerror or str(error)) from error

    def _frame(self, descriptor: int, place: RecordPlace) -> bytes:
        if place.length < 0:
            raise self.index.lost(place)
        frame = os.pread(descriptor, place.length + FRAME_BYTES, place.offset)
        if len(frame) < place.length + FRAME_BYTES:
            raise Unreadable(self.index.name(place), "the file ends in it")
        if int.from_bytes(frame[:8], "little") != place.length:
            reason = f"its length is not {place.length:,} bytes, as it was when it was found"
            raise Unreadable(self.index.name(place), reason)
        return frame

    def name(self, index: int) -> str:
        """The file, the number of the record in it, and where it begins."""
        (place,) = self.index.places(np.array([index], np.int64))
        return self.index.name(place)
