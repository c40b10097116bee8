from __future__ import annotations

import pytest

from memfit.guarding.micro_batch_size import Ladder, Needs

MIB = 1 << 20


def test_starts_with_the_whole_batch_and_halves_down_to_one_sample() -> None:
    ladder = Ladder()
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


def test_grows_back_the_way_it_came_when_less_is_in_use_than_when_it_failed() -> None:
    ladder = Ladder()
    ladder.step_down(64, 900 * MIB)
    ladder.step_down(64, 900 * MIB)
    sizes = []
    while ladder.step_up(500 * MIB):
        sizes.append(ladder.size_for(64))
    assert sizes == [32, 64]


def test_does_not_try_a_size_again_while_as_much_is_in_use() -> None:
    ladder = Ladder()
    ladder.step_down(64, 900 * MIB)
    assert not ladder.step_up(900 * MIB)
    assert not ladder.step_up(890 * MIB), "the peak moves by more than that by itself"
    assert not ladder.step_up(None), "it is unknown what is in use"
    assert ladder.size_for(64) == 32


def test_does_not_oscillate() -> None:
    """Each failure lowers what must be in use for another try, so tries come to an end."""
    ladder, tries, in_use = Ladder(), 0, 900 * MIB
    ladder.step_down(64, in_use)
    for step in range(1000):
        in_use = (900 - step % 100) * MIB  # goes up and down, and never far enough
        if ladder.step_up(in_use):
            tries += 1
            ladder.step_down(64, in_use)
    assert tries <= 6


def test_batches_that_come_and_go_in_a_pipeline_are_no_relief() -> None:
    """An eighth of what the step had is; a few batches that were ready when it failed are not."""
    ladder, limit = Ladder(), 65 * MIB
    ladder.step_down(16, 7 * MIB)
    ladder.needs.note(8, 30 * MIB)
    for in_use in (6 * MIB, 5 * MIB, 3 * MIB):
        assert not ladder.step_up(in_use, free_bytes=limit - in_use)
    ladder = Ladder()
    ladder.step_down(16, 14 * MIB)
    ladder.needs.note(8, 30 * MIB)
    assert ladder.step_up(3 * MIB, free_bytes=limit - 3 * MIB)


def test_never_grows_beyond_where_it_was_told_to_start() -> None:
    ladder = Ladder(16)
    ladder.step_down(64, 900 * MIB)
    assert ladder.step_up(100 * MIB)
    assert ladder.size_for(64) == 16
    assert not ladder.step_up(0)


def test_begins_anew_when_told_so() -> None:
    ladder = Ladder()
    ladder.step_down(64, 900 * MIB)
    ladder.start_at(8)
    assert ladder.size_for(64) == 8
    assert not ladder.step_up(0)


def test_a_plan_for_whole_batches_does_not_split_larger_ones_later() -> None:
    ladder = Ladder(16)
    ladder.forget_whole(16)
    assert ladder.size_for(32) == 32
    ladder = Ladder(8)
    ladder.forget_whole(16)
    assert ladder.size_for(32) == 8


def test_goes_on_where_another_was() -> None:
    before = Ladder(64)
    before.step_down(64, 100 * MIB)
    before.step_down(64, None)
    after = Ladder.from_dict(before.to_dict())
    assert after.size_for(64) == before.size_for(64) == 16
    assert after.start == 64
    third = Ladder()
    third.go_on_as(after)
    assert third.to_dict() == before.to_dict()
    assert third.step_up(10 * MIB) is False  # nobody knows what was in use when it failed last


def test_a_size_that_was_measured_is_known_not_to_fit() -> None:
    needs = Needs()
    assert needs.may_fit(64, 1), "nothing is known yet"
    needs.note(64, 100 * MIB)
    needs.note(64, 90 * MIB)
    assert needs.may_fit(64, 90 * MIB)
    assert needs.may_fit(64, 80 * MIB), "in a full pool it may need somewhat less"
    assert not needs.may_fit(64, 70 * MIB)
    assert needs.may_fit(32, 10 * MIB), "a smaller one has not been measured"
    assert needs.may_fit(64, None)


def test_a_larger_size_is_judged_by_the_nearest_that_was_measured() -> None:
    needs = Needs()
    needs.note(16, 50 * MIB)
    assert needs.may_fit(32, 85 * MIB)
    assert not needs.may_fit(32, 75 * MIB)


def test_it_does_not_grow_back_into_what_cannot_fit() -> None:
    """Less is in use after the first step than before it, which does not make a larger step fit."""
    ladder = Ladder()
    ladder.step_down(64, 40 * MIB)
    ladder.needs.note(32, 100 * MIB)
    assert not ladder.step_up(20 * MIB, free_bytes=130 * MIB)
    assert ladder.step_up(20 * MIB, free_bytes=170 * MIB)


def test_steps_are_measured_often_at_first_and_seldom_later() -> None:
    needs = Needs()
    measured = [needs.wants(8) for _ in range(100)]
    assert all(measured[:8])
    assert 0 < sum(measured[8:]) < 10
