from __future__ import annotations

import os
from pathlib import Path

import pytest

from memfit.core import cache
from memfit.core.records import DeviceMemory, MicroBatchChange

CHANGE = MicroBatchChange(3, 16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_is_kept_is_recalled() -> None:
    assert cache.recall(MicroBatchChange, "1f") is None
    cache.keep("1f", CHANGE)
    assert cache.recall(MicroBatchChange, "1f") == CHANGE
    assert cache.recall(MicroBatchChange, "2f") is None
    assert cache.recall(DeviceMemory, "1f") is None


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99, "kind": "micro_batch_change"}', "\udcff"])
def test_what_cannot_be_read_is_not_there(home: Path, text: str) -> None:
    cache.keep("1f", CHANGE)
    (file,) = home.glob("*/*.json")
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cache.recall(MicroBatchChange, "1f") is None


def test_the_newest_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST", 2)
    for age, key in ((30, "a"), (20, "b"), (10, "c")):
        cache.keep(key, CHANGE)
        (file,) = home.glob(f"*/{key}.json")
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    cache.keep("d", CHANGE)
    assert sorted(path.stem for path in home.glob("*/*.json")) == ["c", "d"]
    assert not list(home.glob("*/.*"))


def test_a_home_that_cannot_be_written_is_no_error(home: Path) -> None:
    home.write_text("a file where a folder should be")
    cache.keep("1f", CHANGE)
    assert cache.recall(MicroBatchChange, "1f") is None


def test_the_home_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMFIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.home() == Path("/caches/memfit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/anna")
    assert cache.home() == Path("/home/anna/.cache/memfit")
