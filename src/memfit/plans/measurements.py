"""What earlier runs came to, as an input of the next plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memfit.records import Measured

_LOWER = 0.94  # than what ran out
_MOST_MORE = 1.25  # a peak far beyond what was foreseen is something else on the device


def that_matter(runs: Iterable[Measured], budget_bytes: int) -> tuple[Measured, ...]:
    """Runs that ran out, or needed more than was foreseen; not where that was enough in this very budget."""
    return tuple(
        run
        for run in runs
        if _ran_out_within(run, budget_bytes) or (_excess(run) > 1 and run.limit_bytes != budget_bytes)
    )


def aim_of(budget_bytes: int, past: Sequence[Measured]) -> int:
    """What a plan for a budget may need: less than what ran out there, and less by what was not foreseen."""
    aims = [budget_bytes / max((_excess(run) for run in past), default=1.0)]
    aims += [_LOWER * run.choice.safe_bytes for run in past if _ran_out_within(run, budget_bytes)]
    return int(min(aims))


def _ran_out_within(run: Measured, budget_bytes: int) -> bool:
    """Whether it ran out although it had as much as there is now."""
    return bool(run.ooms) and run.limit_bytes is not None and run.limit_bytes >= budget_bytes


def _excess(run: Measured) -> float:
    """How much more a run needed than it should have, up to what can be its own."""
    if run.peak_bytes is None or run.ooms:
        return 1.0
    return min(_MOST_MORE, max(1.0, run.peak_bytes / run.choice.safe_bytes))
