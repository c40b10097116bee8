"""Plain values to JSON and back."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from memfit.supervision.plain import NotPlain, decode, encode


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
