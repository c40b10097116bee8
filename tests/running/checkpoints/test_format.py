"""Checkpoint files: plain values and arrays, whole or not at all, with checksums."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memfit.core.errors import DamagedCheckpoint
from memfit.running.checkpoints.format import NotPlain, decode, encode, read_checkpoint, write_checkpoint

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


def _back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    text = json.dumps(encode(value, arrays, "value"))
    return decode(json.loads(text), arrays)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        float("inf"),
        [1, [2.5, "three"], ()],
        {"best": -1.0, 3: (1, None), "array": [], "nested": {"tuple": 1}},
        random.Random(3).getstate(),
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    assert _back(value) == value


def test_arrays_and_numbers_of_numpy_come_back() -> None:
    found = _back({"best": np.float32(0.25), "weights": [np.arange(3), np.ones((2, 2), "float16")]})
    assert isinstance(found["best"], np.float32)
    assert found["best"] == np.float32(0.25)
    assert found["weights"][0].tolist() == [0, 1, 2]
    assert found["weights"][1].dtype == np.float16
    state = np.random.RandomState(5).get_state()
    again = np.random.RandomState()
    again.set_state(_back(state))
    assert again.randint(1 << 30) == np.random.RandomState(5).randint(1 << 30)


@pytest.mark.parametrize("value", [object(), {"model": random}, [lambda: 1], np.array([object()])])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        _back(value)
