"""What is known of a pack: the manifest, what is kept until it is finished, and what is damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from memfit.roundtrips import Record

Format = Literal["tfrecord", "hdf5"]
FeatureKind = Literal["image", "number", "array", "text"]
SourceKind = Literal["images", "hdf5", "npz", "npy"]


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
    """What a pack was made from; the fingerprint says whether it would come out the same again."""

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
        """How large its shards are together."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True)
class Unfinished(Record):
    """What a pack will be: written first, so that a second attempt cuts the same shards."""

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
    """What reading a whole pack has shown."""

    path: str
    format: Format
    elements: int
    shards: int
    bytes: int
    damages: tuple[Damage, ...] = ()
