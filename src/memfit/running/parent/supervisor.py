"""A job run until it is done: started again where it was whenever it was killed."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from memfit.core import cache
from memfit.core.errors import CannotResume, CannotWrite, MemfitError
from memfit.core.output_file import output_file
from memfit.machine.onednn import SWITCH, would_be_used
from memfit.running.checkpoints.store import CheckpointStore, checkpoints_in
from memfit.running.journal.events import (
    CheckpointEvent,
    EndEvent,
    Event,
    ExitEvent,
    KernelsEvent,
    KillEvent,
    LimitEvent,
    OutOfMemoryEvent,
    ShortfallEvent,
    StartEvent,
    StepDownEvent,
    StepEvent,
    TrainingEndEvent,
    TrainingRestoreEvent,
    TrainingStartEvent,
    host_reading_of,
)
from memfit.running.journal.run_folder import (
    Job,
    JournalFile,
    RunFolder,
    new_run,
    read_events,
    run_to_resume,
    tell,
)
from memfit.running.journal.summary import read_summary
from memfit.running.parent.exit_causes import CRASHES, ExitCause, LastTraining
from memfit.running.parent.process import Ended, LastReadings, run_child

_MOST_IN_PLACE = 6  # how often it steps down at the same step


@dataclass(frozen=True)
class Position:
    """The position of a script at its end: which training, after which step; no training between them."""

    training: int | None = None
    step: int = 0

    def __str__(self) -> str:
        """In words."""
        return "outside of training" if self.training is None else f"at step {self.step + 1}"


class Supervisor:
    """Runs one job in a folder, again and again where that helps."""

    def __init__(
        self, job: Job, folder: RunFolder, *, most_restarts: int, tell: Callable[[str], None]
    ) -> None:
        self._job, self._folder = job, folder
        self._most_restarts, self._tell = most_restarts, tell
        self._journal = JournalFile(folder.journal)
        self._rungs: dict[int, int] = dict(job.rungs)
        self._crashed_at: Position | None = None
        self._steps_down = Counter[Position]()

    def run(self, environment: Mapping[str, str]) -> int:
        """Run it to its end; the exit code."""
        restarts, environment = 0, self._as_before(environment)
        while True:
            job = dataclasses.replace(self._job, rungs=tuple(self._rungs.items()))
            self._journal.write(StartEvent(attempt=restarts + 1, parent=os.getpid()))
            ended = run_child(job, environment, last=self._last_readings)
            self._write_end(ended)
            if ended.was_asked:
                break
            if ended.exit_cause is None:
                onednn = self._other_kernels(environment)
                if onednn is None or restarts >= self._most_restarts:
                    break
                environment = self._switched(environment, onednn, "It does not fit as it is")
                restarts += 1
                continue
            self._say(ended.exit_cause)
            environment = self._more_careful(ended, environment)
            reason = self._why_not_again(ended.exit_cause, restarts)
            if reason is not None:
                self._tell(reason)
                break
            restarts += 1
            self._tell(f"Starting it again ({restarts} of at most {self._most_restarts} times).")
        if ended.code == 0:
            CheckpointStore(Path(self._job.checkpoints)).empty()
        elif self._has_checkpoints():
            self._tell(f"To go on from the last checkpoint: {self._command()}")
        self._journal.write(EndEvent(ended.code))
        self._journal.close()
        return ended.code

    def _more_careful(self, ended: Ended, environment: Mapping[str, str]) -> Mapping[str, str]:
        """After a crash: without kernels that crash where they run out of memory, if there were any."""
        if ended.code - 128 not in CRASHES or not would_be_used(environment):
            return environment
        return self._switched(environment, False, "Kernels of oneDNN crash where they run out of memory")

    def _other_kernels(self, environment: Mapping[str, str]) -> bool | None:
        """Whether to go on with oneDNN or without, after a training did not fit; None where neither helps."""
        asked = [event.onednn for event in self._events_of_attempt() if isinstance(event, ShortfallEvent)]
        before = (isinstance(event, KernelsEvent) for event in read_events(self._folder.journal))
        return asked[-1] if asked and SWITCH not in environment and not any(before) else None

    def _switched(self, environment: Mapping[str, str], onednn: bool, why: str) -> Mapping[str, str]:
        """Go on with the other kernels, in this run and when it is resumed."""
        how = "with" if onednn else "without"
        self._tell(
            f"{why}: going on {how} oneDNN. Weights are equal within float32 rounding, not bit for bit."
        )
        self._journal.write(KernelsEvent(onednn))
        return {**environment, SWITCH: str(int(onednn))}

    def _as_before(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """The environment with the kernels that the run went on with before it was interrupted."""
        chosen = [one.onednn for one in read_events(self._folder.journal) if isinstance(one, KernelsEvent)]
        if not chosen or SWITCH in environment:
            return environment
        return {**environment, SWITCH: str(int(chosen[-1]))}

    def _why_not_again(self, exit_cause: ExitCause, restarts: int) -> str | None:
        """A reason to leave it, if there is one; else what is to be different is made so."""
        place = self._place()
        if restarts >= self._most_restarts:
            return f"It is not started again: {restarts} restarts are the most that were asked for."
        if exit_cause.cause == "asked":
            return "It is not started again, because it was ended from outside."
        is_again = place == self._crashed_at
        is_for_memory = exit_cause.cause == "memory" or (exit_cause.may_be_memory and is_again)
        if is_for_memory and self._step_down(place):
            return None
        if is_again:
            return f"It is not started again: it has ended like this {place} before."
        self._crashed_at = place
        return None

    def _step_down(self, place: Position) -> bool:
        """Have the training begin in smaller steps; not where that has been of no use."""
        if place.training is None or self._steps_down[place] == _MOST_IN_PLACE:
            return False
        self._steps_down[place] += 1
        self._rungs[place.training] = self._rungs.get(place.training, 0) + 1
        self._journal.write(StepDownEvent(place.training, rung=self._rungs[place.training]))
        return True

    def _place(self) -> Position:
        """The position of the last attempt at its end."""
        place = Position()
        for event in self._events_of_attempt():
            match event:
                case TrainingStartEvent():
                    place = Position(event.training, event.steps)
                case StepEvent() | CheckpointEvent():
                    place = Position(event.training, event.step or 0)
                case TrainingEndEvent() | TrainingRestoreEvent():
                    place = Position()
        return place

    def _last_readings(self) -> LastReadings:
        """The last readings of an attempt: of the memory around it, and of the training that it was in."""
        events = self._events_of_attempt()
        hosts = [host for event in events if (host := host_reading_of(event)) is not None]
        host = hosts[-1] if hosts else None
        limits = [event.limit_bytes for event in events if isinstance(event, LimitEvent)]
        if not limits or limits[-1] is None or self._place().training is None:
            return host, None
        events = _since_last(TrainingStartEvent, events)
        steps = [event for event in events if isinstance(event, StepEvent)]
        peak_bytes = max((step.device.peak_bytes for step in steps if step.device is not None), default=0)
        ooms = sum(isinstance(event, OutOfMemoryEvent) for event in events)
        return host, LastTraining(limits[-1], peak_bytes, len(steps), ooms)

    def _events_of_attempt(self) -> list[Event]:
        return _since_last(StartEvent, list(read_events(self._folder.journal)))

    def _write_end(self, ended: Ended) -> None:
        cause = ended.exit_cause
        if cause is None:
            self._journal.write(ExitEvent(ended.code))
        else:
            self._journal.write(KillEvent(ended.code, cause.cause, cause.words, cause.evidence))

    def _say(self, exit_cause: ExitCause) -> None:
        for text in (exit_cause.words, *exit_cause.evidence):
            self._tell(text)

    def _has_checkpoints(self) -> bool:
        return bool(checkpoints_in(Path(self._job.checkpoints)))

    def _command(self) -> str:
        """The line that resumes it."""
        given = Path(self._job.checkpoints)
        elsewhere = [] if given == self._folder.checkpoints else ["--checkpoints", str(given)]
        module = ["-m"] if self._job.is_module else []
        return " ".join(["memfit run --resume", *elsewhere, *module, self._job.script, *self._job.arguments])


def _since_last(kind: type[Event], events: list[Event]) -> list[Event]:
    """The events from the last one of a kind on; all of them where there is none."""
    begin = max((number for number, event in enumerate(events) if isinstance(event, kind)), default=0)
    return events[begin:]


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
        with _written_to(cache.home()):
            folder, job = _resumed(job, checkpoints) if resumes else _begun(job, checkpoints)
            supervisor = Supervisor(job, folder, most_restarts=most_restarts, tell=tell)
        code = supervisor.run({_HASH_SEED: str(job.seed), **environment})
        if write is not None:
            write(read_summary(folder).to_json() + "\n")
    return code


def _begun(job: Job, checkpoints: Path | None) -> tuple[RunFolder, Job]:
    folder = new_run()
    place = (folder.checkpoints if checkpoints is None else checkpoints).absolute()
    if found := checkpoints_in(place):
        raise CannotResume(
            f"{checkpoints} has checkpoints of another run",
            expected="an empty folder, or --resume",
            received=f"{len(found)} checkpoints",
        )
    _make(place)
    seed = random.SystemRandom().getrandbits(31)
    job = dataclasses.replace(job, seed=seed, folder=str(folder.path), checkpoints=str(place))
    folder.write_job(job)
    return folder, job


def _resumed(job: Job, checkpoints: Path | None) -> tuple[RunFolder, Job]:
    """The run of before with its seed; a new budget and new levers count."""
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
    with _written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    """Say of a disk that is full, or a folder that is not ours, that it is that."""
    try:
        yield
    except MemfitError:
        raise
    except OSError as error:
        raise CannotWrite(os.fspath(folder), error.strerror or str(error)) from error
