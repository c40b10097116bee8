"""Where runs are kept: a folder each, with what was asked for, what happened, and the checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from memfit import caches
from memfit.errors import RunNotFound
from memfit.supervision.desks import JOURNAL
from memfit.supervision.jobs import Job
from memfit.supervision.journals import read_lines

_MOST = 50  # runs that are kept
_JOB = "job.json"
LAST = "last"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        """What a run is called."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """What happened."""
        return self.path / JOURNAL

    @property
    def checkpoints(self) -> Path:
        """Where they are unless the user says otherwise."""
        return self.path / "checkpoints"

    def write_job(self, job: Job) -> None:
        """Write down what was asked for, and from which folder."""
        text = json.dumps({"job": dataclasses.asdict(job), "folder": str(Path.cwd())})
        (self.path / _JOB).write_text(text, encoding="utf-8")

    def job(self) -> Job | None:
        """What was asked for; None where it cannot be read."""
        found = self._asked()
        return None if found is None else Job.from_fields(found["job"])

    def is_of(self, job: Job) -> bool:
        """Whether it is a run of the same script with the same arguments, from the same folder."""
        found = self._asked()
        names = ("script", "arguments", "is_module")
        return (
            found is not None
            and found["folder"] == str(Path.cwd())
            and all(getattr(Job.from_fields(found["job"]), name) == getattr(job, name) for name in names)
        )

    def is_over(self) -> bool:
        """Whether its script came to an end by itself."""
        return any(line["event"] == "over" for line in read_lines(self.journal))

    def is_running(self) -> bool:
        """Whether its parent is still at work."""
        lines = [line for line in read_lines(self.journal) if line["event"] in ("start", "end")]
        return bool(lines) and lines[-1]["event"] == "start" and psutil.pid_exists(lines[-1]["parent"])

    def _asked(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.path / _JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found


def new_run() -> RunFolder:
    """A folder for a run that begins; the oldest ones go."""
    runs = _runs()
    runs.mkdir(parents=True, exist_ok=True)
    for path in _newest_first(runs)[_MOST - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    path = runs / name
    path.mkdir()
    return RunFolder(path)


def run_to_resume(job: Job) -> RunFolder:
    """The newest run of the same script that did not come to its end."""
    for path in _newest_first(_runs()):
        folder = RunFolder(path)
        if folder.is_of(job) and not folder.is_over():
            return folder
    what = f"{job.script} that could go on"
    raise RunNotFound(what, folder=_runs(), suggestion=f"memfit run {job.script}")


def find_run(name: str) -> RunFolder:
    """A run by its name, by its folder, or the last one."""
    given = Path(name)
    if (given / JOURNAL).is_file():
        return RunFolder(given)
    found = _newest_first(_runs()) if name == LAST else [_runs() / name]
    for path in found:
        if (path / JOURNAL).is_file():
            return RunFolder(path)
    suggestion = "memfit run train.py" if name == LAST else f"memfit report {LAST}"
    raise RunNotFound(f"the name {name!r}", folder=_runs(), suggestion=suggestion)


def _runs() -> Path:
    return caches.home() / "runs"


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.is_dir()), key=_age, reverse=True)


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name
