"""Checkpoint files: what was written or an error, whatever happens to them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memfit.errors import DamagedCheckpoint
from memfit.supervision.files import read_checkpoint, write_checkpoint

SAYS = {"step": 7, "loss": float("nan"), "names": ["a", "b"]}


def _arrays() -> dict[str, Any]:
    return {
        "weights": np.arange(12, dtype="float32").reshape(3, 4),
        "one": np.float64(3.5).reshape(()),
        "none": np.zeros((0, 3), "int8"),
        "turned": np.arange(6).reshape(2, 3).T,
        "flags": np.array([True, False]),
    }


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    size = write_checkpoint(path, SAYS, _arrays().items())
    says, arrays = read_checkpoint(path)
    assert size == path.stat().st_size
    assert says["names"] == ["a", "b"]
    assert np.isnan(says["loss"])
    for name, array in _arrays().items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    assert [one.name for one in tmp_path.iterdir()] == ["a.checkpoint"]


def test_a_file_that_was_cut_off_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    write_checkpoint(path, SAYS, _arrays().items())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpoint):
            read_checkpoint(path)


def test_a_byte_that_has_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    write_checkpoint(path, SAYS, _arrays().items())
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << random.Random(place).randrange(8)
        path.write_bytes(changed)
        with pytest.raises(DamagedCheckpoint):
            read_checkpoint(path)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    write_checkpoint(path, {"step": 1}, _arrays().items())

    def failing() -> Any:
        yield from _arrays().items()
        raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(path, {"step": 2}, failing())
    assert read_checkpoint(path)[0] == {"step": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.checkpoint"]
