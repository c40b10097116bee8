from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.estimating.estimate_series import largest_batch_size


class Needs:
    """Bytes by batch size, and the sizes that somebody asked for."""

    def __init__(self, fixed: float, each: float, *, noise: float = 0.0) -> None:
        self.fixed, self.each, self.noise = fixed, each, noise
        self.asked: list[int] = []

    def __call__(self, size: int) -> int:
        self.asked.append(size)
        return self.at(size)

    def at(self, size: int) -> int:
        share = 1 + self.noise * random.Random(size).uniform(-1, 1)
        return int((self.fixed + self.each * size) * share)


@given(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(1, 10**11))
def test_even_growth_is_solved_exactly(fixed: int, each: int, budget: int) -> None:
    expected = min(max(0, (budget - fixed) // each), 2**30)
    assert largest_batch_size(Needs(fixed, each), budget) == expected


@given(st.integers(0, 10**9), st.integers(10**4, 10**8), st.integers(10**6, 10**11), st.floats(0, 0.1))
def test_with_noise_the_size_fits_and_the_next_one_does_not(
    fixed: int, each: int, budget: int, noise: float
) -> None:
    needs = Needs(fixed, each, noise=noise)
    size = largest_batch_size(needs, budget)
    assert size == 0 or needs.at(size) <= budget
    assert needs.at(size + 1) > budget
    assert len(set(needs.asked)) == len(needs.asked)


@pytest.mark.parametrize("expected", [1, 2, 3, 17, 200, 1000, 5000])
def test_few_sizes_are_tried(expected: int) -> None:
    """Doubling and halving alone would try up to 25 of them."""
    needs = Needs(400e6, 8e6, noise=0.01)
    largest_batch_size(needs, int(400e6 + 8e6 * expected))
    assert len(needs.asked) <= 14


def test_a_step_instead_of_a_slope_still_comes_to_an_end() -> None:
    needs = Needs(0, 0)
    needs.at = lambda size: 10 if size < 777 else 10**9  # type: ignore[method-assign]
    assert largest_batch_size(needs, 1000) == 776
    assert len(needs.asked) <= 40


def test_what_does_not_grow_ends_at_the_most() -> None:
    assert largest_batch_size(Needs(100, 0), 1000, most=5000) == 5000
    assert largest_batch_size(Needs(100, 0), 99, most=5000) == 0
