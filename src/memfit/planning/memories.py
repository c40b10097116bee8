"""What earlier runs came to on this machine: one of the inputs of the next plan."""

from __future__ import annotations

from memfit import caches
from memfit.plans.measurements import that_matter
from memfit.records import Measured, MeasuredRuns, Plan, Run

_MOST = 16


def remember(structure: str | None, plan: Plan, run: Run) -> None:
    """Keep what a run of a plan came to, for models of this structure; without one, nothing."""
    if structure is None or run.steps == 0:
        return
    known = caches.recall(MeasuredRuns, structure) or MeasuredRuns()
    measured = Measured(
        choice=plan.chosen,
        limit_bytes=run.budget.limit_bytes,
        peak_bytes=run.step_peak_bytes,
        seconds_per_step=run.seconds_per_step,
        ooms=sum(oom.phase in ("gradients", "commit") for oom in run.ooms),
    )
    caches.keep(structure, MeasuredRuns((*known.runs, measured)[-_MOST:]))


def runs_that_matter(structure: str | None, budget_bytes: int) -> tuple[Measured, ...]:
    """Runs that needed more than was foreseen."""
    known = None if structure is None else caches.recall(MeasuredRuns, structure)
    return () if known is None else that_matter(known.runs, budget_bytes)
