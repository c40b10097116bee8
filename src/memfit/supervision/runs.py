"""What `memfit run` does: a new run or one that goes on, supervised to its end, and a report of it."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from memfit.errors import CannotResume, CannotWrite
from memfit.reports.files import output_file
from memfit.supervision.desks import tell
from memfit.supervision.folders import RunFolder, new_run, run_to_resume
from memfit.supervision.jobs import Job
from memfit.supervision.stories import read_story
from memfit.supervision.supervisors import Supervisor

_HASH_SEED = "PYTHONHASHSEED"


def run_supervised(
    job: Job,
    environment: Mapping[str, str],
    *,
    checkpoints: Path | None = None,
    most_restarts: int = 10,
    resumes: bool = False,
    report: Path | None = None,
) -> int:
    """Run a script to its end; its exit code."""
    with output_file(report) if report else nullcontext() as write:
        folder, job = _resumed(job, checkpoints) if resumes else _begun(job, checkpoints)
        supervisor = Supervisor(job, folder, most_restarts=most_restarts, tell=tell)
        code = supervisor.run({_HASH_SEED: str(job.seed), **environment})
        if write is not None:
            write(read_story(folder).to_json() + "\n")
    return code


def _begun(job: Job, checkpoints: Path | None) -> tuple[RunFolder, Job]:
    folder = new_run()
    place = (folder.checkpoints if checkpoints is None else checkpoints).absolute()
    if any(place.glob("training-*.checkpoint")):
        raise CannotResume(
            f"{checkpoints} has checkpoints of another run",
            expected="an empty folder, or --resume",
            received=f"{len(list(place.glob('training-*.checkpoint')))} checkpoints",
        )
    _make(place)
    seed = random.SystemRandom().getrandbits(31)
    job = dataclasses.replace(job, seed=seed, folder=str(folder.path), checkpoints=str(place))
    folder.write_job(job)
    return folder, job


def _resumed(job: Job, checkpoints: Path | None) -> tuple[RunFolder, Job]:
    """The run of before with its seed; what is said anew of budget and levers counts."""
    folder = run_to_resume(job)
    before = folder.job()
    assert before is not None
    place = before.checkpoints if checkpoints is None else str(checkpoints.absolute())
    _make(Path(place))
    budget_bytes = before.budget_bytes if job.budget_bytes is None else job.budget_bytes
    return folder, dataclasses.replace(
        job, seed=before.seed, folder=before.folder, checkpoints=place, budget_bytes=budget_bytes
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(os.fspath(folder), error.strerror or str(error)) from error
