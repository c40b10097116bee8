"""What earlier runs came to changes what the next plan aims at."""

from __future__ import annotations

from memfit.core.records import Choice, Measured
from memfit.planning.run_history import aim_of, relevant

CHOICE = Choice(16, 4, None, "float32", False, peak_bytes=900, safe_bytes=1000, relative_time=1.1, exact=True)


def run(*, limit: int | None = 1000, peak: int | None = 950, ooms: int = 0) -> Measured:
    return Measured(CHOICE, limit, peak, 0.5, ooms)


def test_without_surprises_a_plan_aims_at_its_budget() -> None:
    assert relevant([run(), run(peak=None)], 1000) == ()
    assert aim_of(1000, ()) == 1000


def test_what_ran_out_is_not_tried_again() -> None:
    past = relevant([run(ooms=1)], 1000)
    assert len(past) == 1
    assert aim_of(1000, past) == 940


def test_what_ran_out_under_a_smaller_limit_says_nothing() -> None:
    assert relevant([run(ooms=1, limit=800)], 1000) == ()
    assert relevant([run(ooms=1, limit=None)], 1000) == ()


def test_a_peak_that_was_not_foreseen_leaves_less_for_others() -> None:
    past = relevant([run(peak=1100)], 2000)
    assert aim_of(2000, past) == int(2000 / 1.1)


def test_what_was_enough_in_this_very_budget_is_no_reason_to_plan_anew() -> None:
    assert relevant([run(peak=1100, limit=2000)], 2000) == ()


def test_a_peak_of_something_else_does_not_count_in_full() -> None:
    assert aim_of(1000, relevant([run(peak=9000, limit=None)], 1000)) == 800
