"""Where shards end, in which order elements come, and which arguments are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memfit.core.errors import InvalidSize, InvalidStream
from memfit.data.manifest import Feature, Origin, Pack, Shard, Skipped
from memfit.data.packs.make_pack import cut, order_of
from memfit.data.packs.pack_options import Settings, check_places, read_settings


def _cut(sizes: list[int], **settings: Any) -> tuple[int, ...]:
    return cut(np.array(sizes, np.int64), Settings(**settings))


def test_shards_are_about_as_large_and_none_is_empty() -> None:
    assert _cut([10] * 100, shards=4) == (25, 25, 25, 25)
    assert _cut([10] * 100, shard_bytes=300) == (25, 25, 25, 25)
    assert _cut([1, 1, 1, 100, 1, 1], shards=3) == (3, 1, 2)
    assert _cut([100, 1, 1], shards=3) == (1, 1, 1)
    assert _cut([1, 1, 100], shards=3) == (1, 1, 1)
    assert _cut([0, 0, 0], shards=2) in ((1, 2), (2, 1))
    assert _cut([5, 5], shards=9) == (1, 1)
    assert _cut([5], shard_bytes=1 << 30) == (1,)


def test_shards_hold_all_elements_whatever_their_sizes() -> None:
    random = np.random.default_rng(0)
    for count in range(1, 60):
        sizes = random.integers(0, 1000, count) ** 3
        for shards in (1, 2, 7, count):
            found = cut(sizes, Settings(shards=shards))
            assert sum(found) == count
            assert len(found) == min(shards, count)
            assert min(found) >= 1


def test_a_shuffled_order_is_a_permutation_that_never_changes() -> None:
    first = order_of(1000, Settings(shuffle=True))
    assert sorted(first.tolist()) == list(range(1000))
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1
    assert (first != order_of(1000, Settings(shuffle=True, seed=1))).mean() > 0.9
    assert order_of(5, Settings()).tolist() == [0, 1, 2, 3, 4]
    # Fixed for good: a pack that was begun with another version goes on in the same order.
    assert order_of(8, Settings(shuffle=True, seed=3)).tolist() == [5, 2, 1, 0, 4, 6, 3, 7]


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"colour": 1}, "colour"),
        ({"shards": 2, "shard_size": "1MiB"}, "one of shard_size and shards"),
        ({"shards": 0}, "shards=0"),
        ({"workers": True}, "workers=True"),
        ({"seed": -1}, "seed=-1"),
        ({"size": (160,)}, "size=(160,)"),
        ({"format": "zip"}, "format='zip'"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidStream) as caught:
        read_settings(**options)
    assert fact in str(caught.value)
    assert "Try: " in str(caught.value)


def test_a_wrong_size_of_shards_is_named() -> None:
    with pytest.raises(InvalidSize, match="shard_size"):
        read_settings(shard_size="1gigs")


def test_a_pack_is_neither_a_file_nor_inside_of_its_source(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    check_places(tmp_path / "photos", tmp_path / "photos.pack")
    with pytest.raises(InvalidStream, match="not a folder"):
        check_places(tmp_path / "photos", tmp_path / "file")
    for inside in ("photos", "photos/pack", "link/deep/pack"):
        with pytest.raises(InvalidStream, match="inside of"):
            check_places(tmp_path / "photos", tmp_path / inside)


def test_the_manifest_is_as_readers_expect_it() -> None:
    features = {
        "image": Feature("image"),
        "label": Feature("number", "int32", ()),
        "x": Feature("array", "uint8", (160, 160, 3)),
        "path": Feature("text"),
    }
    origin = Origin("photos", "images", "a-b")
    shard = Shard("shard-00000.tfrecord", 2, 100, 7)
    pack = Pack("tfrecord", 2, features, ("a", "b"), origin, (shard,), (Skipped("c.jpg", "empty"),))
    data = pack.to_dict()
    assert {name: data[name] for name in ("schema", "kind", "format", "elements", "class_names")} == {
        "schema": 1,
        "kind": "pack",
        "format": "tfrecord",
        "elements": 2,
        "class_names": ["a", "b"],
    }
    assert data["features"] == {
        "image": {"kind": "image"},
        "label": {"kind": "number", "dtype": "int32", "shape": []},
        "x": {"kind": "array", "dtype": "uint8", "shape": [160, 160, 3]},
        "path": {"kind": "text"},
    }
    assert data["shards"] == [{"name": "shard-00000.tfrecord", "elements": 2, "bytes": 100, "crc32": 7}]
    assert Pack.from_json(pack.to_json()) == pack
