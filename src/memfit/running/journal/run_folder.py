"""The folders of runs: one for each, with the job, the journal and the checkpoints.

The journal is a file of events, one line of JSON each, that only ever grows. Each line is written at once, so
that readers see whole lines, but for the last one of a run that was killed while it wrote. Several processes
may write: each line has its time and its process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from memfit.core import cache
from memfit.core.errors import RunNotFound
from memfit.running.journal.events import EndEvent, Entry, Event, ExitEvent, StartEvent, from_line, to_line

JOURNAL = "journal.jsonl"  # in the folder of a run
ALLOCATOR_LOG = "allocator.log"


class JournalFile:
    """Adds events to a journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read() != b"\n":
                self._write(b"\n")

    def write(self, event: Event) -> None:
        """Add an event; a disk that is full loses it, and nothing else."""
        entry = Entry(event, at=round(time.time(), 3), process=os.getpid())
        self._write(to_line(entry).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            return

    def close(self) -> None:
        """Write no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_entries(path: Path) -> Iterator[Entry]:
    """All whole lines of a journal, in order; torn lines are left out."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for text in file:
            if text.endswith(b"\n") and (entry := from_line(text)) is not None:
                yield entry


def read_events(path: Path) -> Iterator[Event]:
    """The events of a journal, in order."""
    return (entry.event for entry in read_entries(path))


_MOST = 50  # runs that are kept
_JOB = "job.json"
LAST = "last"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """The path of the journal."""
        return self.path / JOURNAL

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints unless the user names another."""
        return self.path / "checkpoints"

    def write_job(self, job: Job) -> None:
        """Write down what was asked for, and from which folder."""
        text = json.dumps({"job": dataclasses.asdict(job), "folder": str(Path.cwd())})
        (self.path / _JOB).write_text(text, encoding="utf-8")

    def job(self) -> Job | None:
        """The job of the run; None where it cannot be read."""
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
        return any(isinstance(event, ExitEvent) for event in read_events(self.journal))

    def is_running(self) -> bool:
        """Whether its parent is still at work."""
        last: StartEvent | EndEvent | None = None
        for event in read_events(self.journal):
            last = event if isinstance(event, StartEvent | EndEvent) else last
        return isinstance(last, StartEvent) and psutil.pid_exists(last.parent)

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
    return cache.home() / "runs"


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.is_dir()), key=_age, reverse=True)


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name


_NAME = "MEMFIT_JOB"


@dataclass(frozen=True)
class Job:
    """A script, and how it is to be run."""

    script: str  # a file, or the name of a module
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    is_guarded: bool = False
    budget_bytes: int | None = None  # else that of the machine
    allow: tuple[str, ...] = ("micro_batch", "remat")
    plans: bool = True
    parent: int = 0  # its process
    seed: int = 0  # of random numbers that the script does not seed itself
    folder: str = ""  # where the journal is
    checkpoints: str = ""  # the folder that they are in
    rungs: tuple[tuple[int, int], ...] = ()  # how far down its ladder each training begins

    def into(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment that carries it."""
        return {**environment, _NAME: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def out_of_environment(cls) -> Self:
        """The job that this process was started for."""
        return cls.from_fields(json.loads(os.environ.pop(_NAME)))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """A job from JSON."""
        tuples = {name: tuple(fields[name]) for name in ("arguments", "allow")}
        return cls(**fields | tuples | {"rungs": tuple((number, rung) for number, rung in fields["rungs"])})


def tell(text: str) -> None:
    """Say something to whoever watches the script."""
    sys.stderr.write(f"memfit: {text}\n")
    sys.stderr.flush()
