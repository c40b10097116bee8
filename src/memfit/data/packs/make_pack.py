"""Any source -> shards, written one after the other while threads read and decode ahead."""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from memfit.core.errors import DamagedData, NoData
from memfit.data.manifest import FinishedShard, Origin, Pack, Skipped, Unfinished
from memfit.data.packs import pack_folder
from memfit.data.packs.encodings import encoder
from memfit.data.packs.hdf5_file import join
from memfit.data.packs.pack_options import Settings
from memfit.data.packs.pack_source import Element, Indices, PackSource
from memfit.data.packs.shards import Payload, ShardWriter, find_finished, shard_name
from memfit.data.packs.verifying import check_fresh

Numbers = npt.NDArray[np.int64]

_STEP = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)


def order_of(length: int, settings: Settings) -> Numbers:
    """The order of elements: shuffled, it is the same on every machine and with every version of NumPy."""
    if not settings.shuffle:
        return np.arange(length, dtype=np.int64)
    # Numbers as random as their place, by the steps of SplitMix64; sorting them shuffles the places.
    keys = np.arange(1, length + 1, dtype=np.uint64) + np.uint64(settings.seed * 2**32 % 2**64)
    keys *= np.uint64(_STEP)
    for shift, mixer in _MIXERS:
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(mixer)
    return np.argsort(keys ^ (keys >> _LAST_SHIFT), kind="stable").astype(np.int64)


def cut(sizes: Numbers, settings: Settings) -> tuple[int, ...]:
    """The number of elements of each shard, so that shards are about as large; none is empty."""
    ends = np.cumsum(sizes)
    total, length = int(ends[-1]), len(sizes)
    count = min(length, settings.shards or max(1, -(-total // settings.shard_bytes)))
    steps = np.arange(1, count)
    begins = np.searchsorted(ends, total / count * steps, side="right")
    begins = np.maximum.accumulate(np.maximum(begins, 1) - steps) + steps
    begins = np.minimum(begins, length - count + steps)
    return tuple(np.diff(np.concatenate([[0], begins, [length]])).tolist())


T = TypeVar("T")
U = TypeVar("U")

_BLOCK_BYTES = 4 << 20
_MOST_IN_A_BLOCK = 64
_ON_ERROR = 'mend or remove it, or --on-error skip (on_error="skip") to go on without it'


def make(source: PackSource, settings: Settings, folder: Path, path: Path) -> Pack:
    """The pack of a source in a folder: as it is there, or made, or what was begun of it finished."""
    with pack_folder.claimed(folder):
        fingerprint = _fingerprint(source, settings)
        there = pack_folder.prepare(folder, fingerprint, force=settings.force)
        if there is not None:
            return there
        seed = settings.seed if settings.shuffle else None
        origin = Origin(str(path), source.kind, fingerprint, settings.size, seed)
        made = _pack_of(source, settings, origin, _write_shards(source, settings, folder, fingerprint))
        if settings.format == "hdf5":
            made = join(folder, made)
        check_fresh(folder, made, settings)
        pack_folder.finish(folder, made)
        return made


def _fingerprint(source: PackSource, settings: Settings) -> str:
    """The hashes of a pack's arguments and its files; packs of the same fingerprint have the same bytes."""
    arguments = json.dumps({"schema": Pack.schema, **settings.shaping}, sort_keys=True)
    files = hashlib.sha256()
    for stamp in source.stamps():
        files.update(stamp)
    return f"{hashlib.sha256(arguments.encode()).hexdigest()[:16]}-{files.hexdigest()[:32]}"


def _pack_of(source: PackSource, settings: Settings, origin: Origin, finished: list[FinishedShard]) -> Pack:
    shards = tuple(one.shard for one in finished if one.shard.elements)
    skipped = tuple(lost for one in finished for lost in one.skipped)
    if not shards:
        raise NoData(
            origin.path,
            expected="elements that can be read",
            found=f"{len(skipped):,} that cannot, the first because of: {skipped[0].reason}",
            suggestion="a look at the source",
        )
    names = None if source.class_names is None else tuple(source.class_names)
    elements = sum(shard.elements for shard in shards)
    return Pack(settings.format, elements, source.features, names, origin, shards, skipped)


def _write_shards(
    source: PackSource, settings: Settings, folder: Path, fingerprint: str
) -> list[FinishedShard]:
    sizes, order = source.sizes(), order_of(source.length, settings)
    unfinished = pack_folder.planned(folder)
    if unfinished is None:
        unfinished = Unfinished(fingerprint, cut(sizes[order], settings))
        pack_folder.plan(folder, unfinished)
    block = int(np.clip(_BLOCK_BYTES // max(1, int(sizes.mean())), 1, _MOST_IN_A_BLOCK))
    return _Packing(source, settings, folder, order).run(unfinished.counts, block)


class _Block(NamedTuple):
    """Some elements of a shard."""

    shard: int
    indices: Indices


class _Packing:
    """Writes the shards that are missing."""

    def __init__(self, source: PackSource, settings: Settings, folder: Path, order: Indices) -> None:
        self._source, self._settings, self._folder, self._order = source, settings, folder, order
        self._encode = encoder(settings.format, source.features)
        self._done = 0

    def run(self, counts: tuple[int, ...], block: int) -> list[FinishedShard]:
        """All shards, whether they were there or not."""
        found = {number: self._find(number) for number in range(len(counts))}
        self._done = sum(counts[number] for number, one in found.items() if one is not None)
        self._settings.tell("Packing", self._done, self._source.length)
        missing = [number for number, one in found.items() if one is None]
        blocks = self._blocks(counts, missing, block)
        with ThreadPoolExecutor(self._settings.width, "memfit-pack") as pool:
            try:
                prepared = _in_order(pool, self._prepare, blocks, ahead=2 * self._settings.width)
                for number, group in itertools.groupby(prepared, key=lambda one: one[0]):
                    found[number] = self._write(number, (item for _, items in group for item in items))
            finally:
                pool.shutdown(cancel_futures=True)
        return [one for one in found.values() if one is not None]

    def _find(self, number: int) -> FinishedShard | None:
        found = find_finished(self._folder / shard_name(number, self._settings.format))
        is_wanted = found is None or not found.skipped or self._settings.on_error == "skip"
        return found if is_wanted else None

    def _blocks(self, counts: tuple[int, ...], missing: list[int], size: int) -> Iterator[_Block]:
        ends = np.cumsum(counts)
        for number in missing:
            for begin in range(int(ends[number]) - counts[number], int(ends[number]), size):
                yield _Block(number, self._order[begin : min(begin + size, int(ends[number]))])

    def _prepare(self, block: _Block) -> tuple[int, list[Payload | DamagedData]]:
        return block.shard, [self._payload(element) for element in self._source.read(block.indices)]

    def _payload(self, element: Element | DamagedData) -> Payload | DamagedData:
        if isinstance(element, DamagedData):
            return element
        data = self._encode(element)
        return Payload(data, zlib.crc32(data))

    def _write(self, number: int, items: Iterable[Payload | DamagedData]) -> FinishedShard:
        skipped: list[Skipped] = []
        with ShardWriter(self._folder, shard_name(number, self._settings.format)) as writer:
            writer.open()
            for item in items:
                if isinstance(item, DamagedData):
                    skipped.append(self._skip(item))
                else:
                    writer.write(item)
                self._done += 1
                self._settings.tell("Packing", self._done, self._source.length)
            return writer.finish(skipped)

    def _skip(self, damaged: DamagedData) -> Skipped:
        if self._settings.on_error == "raise":
            raise DamagedData(damaged.where, damaged.reason, suggestion=_ON_ERROR)
        return Skipped(damaged.where, damaged.reason)


def _in_order(
    pool: ThreadPoolExecutor, function: Callable[[T], U], items: Iterable[T], *, ahead: int
) -> Iterator[U]:
    """Results in the order of what they are made from, a few of them made ahead."""
    waiting: deque[Future[U]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
