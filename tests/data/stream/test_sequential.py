"""Shuffling what comes one after the other, in a window of bytes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real


def _shuffle() -> dict[str, object]:
    import numpy as np

    from memfit.data.stream.sequential import element_bytes, shuffled

    held, most = 0, 0

    def elements() -> object:
        nonlocal held, most
        for number in range(400):
            element = (np.full(250 if number < 200 else 1250, number, np.int32),)
            held += element_bytes(element)
            most = max(most, held)
            yield element

    order = []
    for element in shuffled(elements(), 50_000, np.random.default_rng(3)):  # type: ignore[arg-type]
        held -= element_bytes(element)
        order.append(int(element[0][0]))
    return {"whole": sorted(order) == list(range(400)), "moved": order != sorted(order), "most": most}


def test_a_window_holds_bytes_not_elements() -> None:
    from limited import run_limited

    seen = run_limited(_shuffle, None)
    most = seen.pop("most")
    assert seen == {"whole": True, "moved": True}
    assert 50_000 <= most <= 56_000  # one element beyond the window, however large elements become
