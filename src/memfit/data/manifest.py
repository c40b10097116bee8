"""The records of a pack: manifest, unfinished pack, finished shard, verification; their summaries as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from memfit.core.serialization import Record
from memfit.core.units import format_size

Format = Literal["tfrecord", "hdf5"]
FeatureKind = Literal["image", "number", "array", "text"]
SourceKind = Literal["images", "hdf5", "npz", "npy"]

_LISTED = 10


@dataclass(frozen=True)
class Feature:
    """One part of every element; images and texts have neither type nor shape."""

    kind: FeatureKind
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Skipped:
    """An element that could not be read and was left out."""

    where: str
    reason: str


@dataclass(frozen=True)
class Shard:
    """A file of a pack; `crc32` is that of its index."""

    name: str
    elements: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Origin:
    """The source of a pack; its fingerprint says whether the pack would come out the same again."""

    path: str
    kind: SourceKind
    fingerprint: str
    size: tuple[int, ...] | None = None
    shuffled_with_seed: int | None = None


@dataclass(frozen=True)
class Pack(Record):
    """The manifest."""

    format: Format
    elements: int
    features: dict[str, Feature]
    class_names: tuple[str, ...] | None
    source: Origin
    shards: tuple[Shard, ...]
    skipped: tuple[Skipped, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data; features say only what they have."""
        data = super().to_dict()
        for name, feature in data["features"].items():
            data["features"][name] = {key: value for key, value in feature.items() if value is not None}
        return data

    @property
    def size_bytes(self) -> int:
        """The bytes of its shards together."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True)
class Unfinished(Record):
    """The shards that a pack will have: written first, so that a second attempt cuts the same ones."""

    fingerprint: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class FinishedShard(Record):
    """A shard that is whole, in a pack that is not finished yet."""

    shard: Shard
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class Damage:
    """Something in a pack that is not what was written: a file, or one record of it."""

    file: str
    record: int | None
    reason: str


@dataclass(frozen=True)
class Verification(Record):
    """The result of reading a whole pack: its size and each damage."""

    path: str
    format: Format
    elements: int
    shards: int
    bytes: int
    damages: tuple[Damage, ...] = ()


def summary_of_pack(pack: Pack) -> str:
    """The contents of a pack and the elements that were left out, as text."""
    features = ", ".join(f"{name} ({_described(feature)})" for name, feature in pack.features.items())
    lines = [
        f"elements  {pack.elements:,}",
        f"features  {features}",
        f"files     {len(pack.shards):,} in {pack.format}, {format_size(pack.size_bytes)}",
    ]
    if pack.class_names is not None:
        lines.append(f"classes   {len(pack.class_names):,}")
    if pack.skipped:
        lines += [f"left out  {len(pack.skipped):,}", *_some([_lost(lost) for lost in pack.skipped])]
    return "\n".join(lines)


def summary_of_verification(found: Verification) -> str:
    """The size of a pack, and each file and record that is damaged, as text."""
    files = f"{found.shards:,} {'file' if found.shards == 1 else 'files'} in {found.format}"
    there = f"{found.path}: {found.elements:,} elements in {files}, {format_size(found.bytes)}"
    if not found.damages:
        return f"{there}: all as it was written."
    return "\n".join([f"{there}: damaged.", *map(_damaged, found.damages)])


def _described(feature: Feature) -> str:
    if feature.dtype is None:
        return feature.kind
    return f"{feature.dtype} {'×'.join(map(str, feature.shape or ()))}".strip()


def _lost(lost: Skipped) -> str:
    return f"  {lost.where}: {lost.reason}"


def _damaged(damage: Damage) -> str:
    record = "" if damage.record is None else f", record {damage.record:,}"
    return f"  {damage.file}{record}: {damage.reason}"


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], f"  … and {more:,} more, in the manifest"] if more > 0 else lines
