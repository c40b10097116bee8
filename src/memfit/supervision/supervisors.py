"""A job run until it is done: started again where it was whenever it was killed."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memfit.devices import onednn
from memfit.supervision.deaths import CRASHES, Death, Host, LastTraining
from memfit.supervision.folders import RunFolder
from memfit.supervision.jobs import Job
from memfit.supervision.journals import JournalFile, Line, read_lines
from memfit.supervision.parents import Ended, LastReadings, run_child
from memfit.supervision.shelves import Shelf

_MOST_IN_PLACE = 6  # how often it steps down at the same step
_READINGS = ("process_bytes", "available_bytes", "total_bytes")


@dataclass(frozen=True)
class Place:
    """Where a script was when it ended: which training, after which step; no training between them."""

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
        self._crashed_at: Place | None = None
        self._steps_down = Counter[Place]()

    def run(self, environment: Mapping[str, str]) -> int:
        """Run it to its end; the exit code."""
        restarts = 0
        while True:
            job = dataclasses.replace(self._job, rungs=tuple(self._rungs.items()))
            self._journal.write("start", attempt=restarts + 1, parent=os.getpid())
            ended = run_child(job, environment, last=self._last_readings)
            self._write_end(ended)
            if ended.death is None or ended.was_asked:
                break
            self._say(ended.death)
            environment = self._more_careful(ended, environment)
            reason = self._why_not_again(ended.death, restarts)
            if reason is not None:
                self._tell(reason)
                break
            restarts += 1
            self._tell(f"Starting it again ({restarts} of at most {self._most_restarts} times).")
        if ended.code == 0:
            Shelf(Path(self._job.checkpoints)).empty()
        elif self._has_checkpoints():
            self._tell(f"To go on from the last checkpoint: {self._command()}")
        self._journal.write("end", code=ended.code)
        self._journal.close()
        return ended.code

    def _more_careful(self, ended: Ended, environment: Mapping[str, str]) -> Mapping[str, str]:
        """After a crash: without kernels that crash where they run out of memory, if there were any."""
        if ended.code - 128 not in CRASHES or not onednn.would_be_used(environment):
            return environment
        self._tell("Kernels of oneDNN crash where they run out of memory: going on without oneDNN.")
        return {**environment, onednn.SWITCH: "0"}

    def _why_not_again(self, death: Death, restarts: int) -> str | None:
        """A reason to leave it, if there is one; else what is to be different is made so."""
        place = self._place()
        if restarts >= self._most_restarts:
            return f"It is not started again: {restarts} restarts are the most that were asked for."
        if death.cause == "asked":
            return "It is not started again: somebody has ended it."
        is_again = place == self._crashed_at
        is_for_memory = death.cause == "memory" or (death.may_be_memory and is_again)
        if is_for_memory and self._step_down(place):
            return None
        if is_again:
            return f"It is not started again: it has ended like this {place} before."
        self._crashed_at = place
        return None

    def _step_down(self, place: Place) -> bool:
        """Have the training begin in smaller steps; not where that has been of no use."""
        if place.training is None or self._steps_down[place] == _MOST_IN_PLACE:
            return False
        self._steps_down[place] += 1
        self._rungs[place.training] = self._rungs.get(place.training, 0) + 1
        self._journal.write("step down", training=place.training, rung=self._rungs[place.training])
        return True

    def _place(self) -> Place:
        """Where the last attempt was."""
        place = Place()
        for line in self._lines_of_attempt():
            if line["event"] in ("training", "step", "checkpoint"):
                place = Place(line["training"], line.get("steps", line.get("step")) or 0)
            elif line["event"] in ("trained", "restored"):
                place = Place()
        return place

    def _last_readings(self) -> LastReadings:
        """What the last attempt had read of the memory around it, and of the training that it was in."""
        lines = self._lines_of_attempt()
        read = [line for line in lines if all(name in line for name in _READINGS)]
        host = Host(*(read[-1][name] for name in _READINGS)) if read else None
        limits = [line["limit_bytes"] for line in lines if line["event"] == "limit"]
        if not limits or self._place().training is None:
            return host, None
        begun = max(number for number, line in enumerate(lines) if line["event"] == "training")
        steps = [line for line in lines[begun:] if line["event"] == "step"]
        peak_bytes = max((line.get("peak_bytes", 0) for line in steps), default=0)
        ooms = sum(line["event"] == "oom" for line in lines[begun:])
        return host, LastTraining(limits[-1], peak_bytes, len(steps), ooms)

    def _lines_of_attempt(self) -> list[Line]:
        lines = list(read_lines(self._folder.journal))
        starts = [number for number, line in enumerate(lines) if line["event"] == "start"]
        return lines[starts[-1] :] if starts else lines

    def _write_end(self, ended: Ended) -> None:
        if ended.death is None:
            self._journal.write("over", code=ended.code)
        else:
            death = ended.death
            facts = {"cause": death.cause, "words": death.words, "evidence": death.evidence}
            self._journal.write("died", code=ended.code, **facts)

    def _say(self, death: Death) -> None:
        for text in (death.words, *death.evidence):
            self._tell(text)

    def _has_checkpoints(self) -> bool:
        return any(Path(self._job.checkpoints).glob("training-*.checkpoint"))

    def _command(self) -> str:
        """The line that resumes it."""
        given = Path(self._job.checkpoints)
        elsewhere = [] if given == self._folder.checkpoints else ["--checkpoints", str(given)]
        module = ["-m"] if self._job.is_module else []
        return " ".join(["memfit run --resume", *elsewhere, *module, self._job.script, *self._job.arguments])
