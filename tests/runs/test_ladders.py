from __future__ import annotations

import pytest

from memfit.runs.ladders import Ladder


def test_starts_with_the_whole_batch_and_halves_down_to_one_sample() -> None:
    ladder = Ladder(None)
    sizes = [ladder.size_for(53)]
    while (smaller := ladder.step_down(53)) is not None:
        sizes.append(smaller)
    assert sizes == [53, 27, 14, 7, 4, 2, 1]
    assert ladder.size_for(53) == 1


@pytest.mark.parametrize(
    ("start", "batch", "expected"), [(8, 64, 8), (8, 5, 5), (100, 64, 64), (None, 64, 64)]
)
def test_starts_where_it_is_told_but_not_beyond_the_batch(
    start: int | None, batch: int, expected: int
) -> None:
    assert Ladder(start).size_for(batch) == expected


def test_steps_down_from_a_short_batch_too() -> None:
    ladder = Ladder(64)
    assert ladder.step_down(10) == 5
    assert ladder.size_for(64) == 5
