"""Where each record of a data set is: found once by its headers, or taken from a pack's own index files."""

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
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memfit import caches
from memfit.data.files import Names, shown
from memfit.data.packs.records import Pack, Shard
from memfit.data.records.frames import FRAME_BYTES, Frames, find_frames
from memfit.data.sources import Indices, Unreadable
from memfit.errors import NoData
from memfit.roundtrips import Record

logger = logging.getLogger("memfit")

_THREADS = 8


class Place(NamedTuple):
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
        """How much memory it takes."""
        return int(self._ends.nbytes + self._firsts.nbytes) + self.names.held_bytes

    def mean_of_the_largest(self, count: int) -> int:
        """How large records are in the worst block of so many."""
        sizes = np.diff(self._ends, prepend=0)
        largest = np.partition(sizes, -count)[-count:] if count < len(sizes) else sizes
        return int(np.ceil(largest.mean()))

    def places(self, indices: Indices) -> list[Place]:
        """Where records are."""
        files = np.searchsorted(self._firsts, indices, "right") - 1
        firsts = self._firsts[files]
        begins = self._begins(indices)
        columns = (files, indices - firsts, begins - self._begins(firsts), self._ends[indices] - begins)
        return [
            Place(file, number, offset, size - FRAME_BYTES)
            for file, number, offset, size in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _begins(self, indices: Indices) -> Indices:
        return np.where(indices > 0, self._ends[indices - 1], 0)

    def name(self, place: Place) -> str:
        """What to call a record."""
        return f"{shown(self.names[place.file])}, record {place.number:,} (byte {place.offset:,})"

    def lost(self, place: Place) -> Unreadable:
        """Why a place holds no record."""
        return Unreadable(self.name(place), str(self._damages[place.file]))

    def first_lost(self) -> Unreadable | None:
        """What is wrong with the first damaged file."""
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
    """What is kept of some files until one of them changes."""

    counts: tuple[int, ...]  # records of each file
    lengths: str  # of all records: int64, compressed, in base64
    damages: tuple[str | None, ...]  # what is wrong behind the last record of each file


def find_index(names: Names) -> RecordIndex:
    """The records of uncompressed files; finding them costs nothing the second time."""
    key = _key(names)
    kept = caches.recall(FrameList, key)
    frames = None if kept is None else _unpacked(kept, len(names))
    if frames is None:
        with ThreadPoolExecutor(_THREADS) as threads:
            frames = list(threads.map(find_frames, names))
        caches.keep(key, _packed(frames))
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
    """What was kept; None if it is not what it should be."""
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
