"""A part of the fault matrix; `make bench NAME=faults` runs all of it."""

from __future__ import annotations

import pytest

from guarding.faults import MATRIX, problems

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("phase", "when", "how"),
    [
        ("forward", "first", "graph"),
        ("forward", "later", "XLA"),
        ("backward", "later", "graph"),
        ("commit", "first", "graph"),
        ("commit", "later", "graph"),
        ("evaluation", "first", "graph"),
        ("prediction", "later", "graph"),
        ("callback fails", "later", "graph"),
        ("slots", "first", "graph"),
    ],
)
def test_a_fault_changes_nothing_and_what_follows_is_right(phase: str, when: str, how: str) -> None:
    assert (phase, when, how) in MATRIX
    assert problems(phase, when, how) == []
