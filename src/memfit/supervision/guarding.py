"""A script's TensorFlow and Keras made ready as soon as the script imports them."""

from __future__ import annotations

from memfit.supervision.desks import Desk, tell
from memfit.supervision.imports import AfterImport
from memfit.supervision.jobs import Job
from memfit.supervision.monitors import Monitor
from memfit.supervision.patches import Leave, Patches
from memfit.supervision.randomness import seed_everything


def guard_everything(job: Job) -> None:
    """Limit the device when TensorFlow comes, and put Keras' methods behind the guard when Keras does."""
    desk = Desk.of(job)
    patches = Patches(Leave(job.budget_bytes, job.allow, plans=job.plans), desk)
    seed_everything(job.seed)
    AfterImport("keras", patches.install).install()
    AfterImport("tensorflow", lambda: _limit(desk, job.budget_bytes)).install()
    Monitor(desk).start()


def _limit(desk: Desk, budget_bytes: int | None) -> None:
    from memfit.devices import find_budget, limit
    from memfit.errors import MemfitError

    try:
        limit_bytes = limit(budget_bytes or find_budget(None).budget_bytes, raising=False)
        desk.journal.write("limit", limit_bytes=limit_bytes)
    except MemfitError as error:
        tell(f"No limit was set: {error}")
