"""Which checkpoints stay, and which one is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memfit.supervision.shelves import Shelf


def _put(shelf: Shelf, training: int, step: int) -> None:
    shelf.put(training, step, {"step": step}, {"weights": np.full(4, step)}.items())


def test_the_newest_few_of_each_training_stay(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, newest=2)
    for step in (9, 10, 100):
        _put(shelf, 1, step)
    _put(shelf, 12, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "training-1-step-10.checkpoint",
        "training-1-step-100.checkpoint",
        "training-12-step-5.checkpoint",
    ]
    found = shelf.newest_of(1)
    assert found is not None
    assert found[0]["step"] == 100
    assert shelf.newest_of(2) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_the_one_before_a_damaged_one_is_used(tmp_path: Path, damage: str) -> None:
    shelf = Shelf(tmp_path)
    for step in (1, 2):
        _put(shelf, 1, step)
    path = tmp_path / "training-1-step-2.checkpoint"
    whole = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        whole[30] ^= 4
        path.write_bytes(whole if damage == "flipped" else whole[:-1])
    found = shelf.newest_of(1)
    assert found is not None
    assert found[0]["step"] == 1
    assert found[1]["weights"].tolist() == [1, 1, 1, 1]


def test_a_training_that_is_over_has_one(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    _put(shelf, 1, 3)
    assert shelf.end_of(1) is None
    shelf.put(1, None, {"step": 4}, [])
    found = shelf.end_of(1)
    assert found is not None
    assert found[0] == {"step": 4}
    assert shelf.newest_of(1) is None


def test_what_a_kill_left_behind_goes(tmp_path: Path) -> None:
    (tmp_path / ".training-1-step-3.checkpoint.77").write_bytes(b"half")
    Shelf(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_when_the_script_is_over(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    _put(shelf, 1, 3)
    shelf.put(2, None, {}, [])
    (tmp_path / "notes.txt").write_text("mine")
    shelf.empty()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
