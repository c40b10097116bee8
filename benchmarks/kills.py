"""Supervised scripts killed at random steps in every way there is; their final weights, bit for bit.

Each script runs once undisturbed under `memfit run`, then again with kills. Both leave all variables of
models and optimizers in a file, and these must be the same bytes. Weights are a function of all batches in
their order, and the optimizer's `iterations` count them: a batch lost, repeated or changed would show.
`ledger.py` proves it outright: the digits of its weights are the uses of each sample in each epoch, and all
must be 1. Its numbers are whole, so that it gives the same bits also where a death of memory has made its
micro-batches smaller.

Names of cases on the command line choose among them: `python benchmarks/kills.py kernel abort`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _groups import memory_group, within
from _processes import QUIET
from _results import write_results

HERE = Path(__file__).parent
WORKERS = int(os.environ.get("MEMFIT_WORKERS", "3"))
PATIENCE_SECONDS = 900.0
LOOK_SECONDS = 0.02
GROUP_BYTES = 1400 << 20


@dataclass(frozen=True)
class Script:
    """A script, and how it is run; one that trains in a loop of its own has no steps in the journal."""

    path: Path
    budget: str
    options: tuple[str, ...] = ()
    has_steps: bool = True


def _example(name: str, budget: str, *options: str, has_steps: bool = True) -> Script:
    return Script(HERE.parent / "examples" / f"{name}.py", budget, options, has_steps)


SCRIPTS = {
    script.path.stem: script
    for script in (
        _example("image_classifier", "176MiB", "--allow", "remat"),
        _example("autoencoder", "128MiB"),
        _example("text_transformer", "100MiB", "--allow", "remat"),
        _example("pipeline_with_callbacks", "96MiB"),
        _example("custom_loop", "512MiB", has_steps=False),
        _example("several_fits", "40MiB"),
        Script(HERE / "scripts" / "ledger.py", "48MiB"),
    )
}


class Run:
    """One `memfit run` of a script in a folder of its own."""

    def __init__(self, script: Script, folder: Path, home: Path) -> None:
        folder.mkdir()
        self.script, self.folder = script, folder
        self.saved, self.checkpoints = folder / "saved.npz", folder / "checkpoints"
        self._home, self.process = home, None

    def start(self, *arguments: str, options: tuple[str, ...] = (), group: Path | None = None) -> None:
        """Start it, in a memory cgroup if there is one."""
        ours = ("--budget", self.script.budget, "--checkpoints", str(self.checkpoints), *self.script.options)
        script = (str(self.script.path), "--save", str(self.saved), *arguments)
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                within(group, [sys.executable, "-m", "memfit", "run", *ours, *options, *script]),
                cwd=self.folder,
                env={**os.environ, **QUIET, "MEMFIT_HOME": str(self._home)},
                stdout=output,
                stderr=output,
            )

    def finish(self) -> int:
        """Wait until it is over; its exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def lines(self) -> list[dict[str, Any]]:
        """What the journal says so far."""
        for job in (self._home / "runs").glob("*/job.json"):
            with suppress(OSError, ValueError):
                if json.loads(job.read_text())["folder"] == str(self.folder):
                    text = (job.parent / "journal.jsonl").read_bytes()
                    return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == b"\n"]
        return []

    def steps_of_attempt(self) -> int:
        """How many steps of all trainings the attempt that runs now has behind it, as far as it says."""
        steps: dict[int, int] = {}
        for line in self.lines():
            if line["event"] == "start":
                steps = {}
            elif line["event"] in ("step", "checkpoint", "trained", "restored"):
                steps[line["training"]] = line.get("steps", line.get("step")) or steps.get(
                    line["training"], 0
                )
        return sum(steps.values())

    def child(self) -> psutil.Process | None:
        """The process that runs the script, if there is one."""
        with suppress(psutil.NoSuchProcess):
            return next(iter(psutil.Process(self.process.pid).children()), None)
        return None

    def wait_for(self, is_so: Callable[[], Any]) -> bool:
        """Wait until something is so; False where the run is over before."""
        while self.process.poll() is None:
            if is_so():
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def deaths(self) -> list[str]:
        """Why its attempts have died."""
        return [line["words"] for line in self.lines() if line["event"] == "died"]


@dataclass(frozen=True)
class Reference:
    """A script that ran undisturbed: what it saved, how many steps and how much time it took."""

    saved: Path
    steps: int
    seconds: float


class Bench:
    """Runs of one script and what they shall come to; all of them share plans, but nothing else."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script, self._folder, self._runs = script, folder, 0
        self.reference = self._refer()

    def new_run(self) -> Run:
        """A run that has not been started yet."""
        self._runs += 1
        return Run(self.script, self._folder / f"run-{self._runs}", self._folder / "home")

    def _refer(self) -> Reference:
        began, run = time.monotonic(), self.new_run()
        run.start()
        if run.finish() != 0:
            raise RuntimeError(f"{self.script.path.name}: {(run.folder / 'output').read_text()[-2000:]}")
        return Reference(run.saved, run.steps_of_attempt(), time.monotonic() - began)

    def is_identical(self, run: Run) -> bool:
        """Whether a run has saved the same bytes; a ledger must be right, too."""
        if not run.saved.exists():
            return False
        with np.load(self.reference.saved) as wanted, np.load(run.saved) as found:
            is_right = "uses" not in found or bool((found["uses"] == 1).all())
            same = (wanted[name].tobytes() == found[name].tobytes() for name in wanted.files)
            return is_right and wanted.files == found.files and all(same)


Case = Callable[[Bench, random.Random], tuple[Run, int]]


def _signalled(number: int, kills: int) -> Case:
    """A signal to the child, at random steps in ascending order."""

    def case(bench: Bench, chance: random.Random) -> tuple[Run, int]:
        run, done = bench.new_run(), 0
        run.start()
        for place in sorted(
            chance.uniform(0.05, 0.85) for _ in range(kills if bench.script.has_steps else 1)
        ):
            done += _wait_until(run, bench.reference, place, chance) and _send(run, number)
        return run, done

    return case


def _wait_until(run: Run, reference: Reference, place: float, chance: random.Random) -> bool:
    """Wait until a share of a script is done, and a moment longer."""
    if run.script.has_steps:
        is_there = run.wait_for(lambda: run.steps_of_attempt() >= max(1, place * reference.steps))
        time.sleep(chance.uniform(0.0, 0.5))
        return is_there
    time.sleep(place * reference.seconds)
    return run.process.poll() is None


def _send(run: Run, number: int) -> bool:
    child = run.child()
    if child is None:
        return False
    with suppress(psutil.NoSuchProcess):
        child.send_signal(number)
        run.wait_for(lambda: not child.is_running())
        return True
    return False


def _while_writing(kills: int) -> Case:
    """SIGKILL while the file of a checkpoint grows: the child is stopped first, to be sure that it does."""

    def case(bench: Bench, chance: random.Random) -> tuple[Run, int]:
        run, done = bench.new_run(), 0
        run.start()
        for place in sorted(chance.uniform(0.05, 0.7) for _ in range(kills)):
            run.wait_for(lambda place=place: run.steps_of_attempt() >= place * bench.reference.steps)
            done += _kill_while_writing(run)
        return run, done

    return case


def _kill_while_writing(run: Run) -> bool:
    child = run.child()
    while child is not None and run.process.poll() is None:
        if _is_being_written(run):
            with suppress(psutil.NoSuchProcess):
                child.suspend()
                if _is_being_written(run):
                    return _send(run, signal.SIGKILL)
                child.resume()
        time.sleep(0.0005)
    return False


def _is_being_written(run: Run) -> bool:
    return any(run.checkpoints.glob(".training-*"))


def _damaged(damage: Callable[[Path, random.Random], None]) -> Case:
    """The newest checkpoint damaged after a kill that nobody has survived, then `--resume`."""

    def case(bench: Bench, chance: random.Random) -> tuple[Run, int]:
        run, place = bench.new_run(), chance.uniform(0.4, 0.8)
        run.start(options=("--max-restarts", "0"))
        run.wait_for(lambda: run.steps_of_attempt() >= place * bench.reference.steps and len(_kept(run)) > 1)
        done = _send(run, signal.SIGKILL)
        run.finish()
        damage(_kept(run)[-1], chance)
        run.start(options=("--resume",))
        return run, int(done)

    return case


def _kept(run: Run) -> list[Path]:
    """The checkpoints of a training that is not over, the newest last."""
    found = run.checkpoints.glob("training-*-step-*.checkpoint")
    return sorted(found, key=lambda path: [int(part) for part in path.stem.split("-") if part.isdigit()])


def _truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _flip(path: Path, chance: random.Random) -> None:
    contents = bytearray(path.read_bytes())
    contents[chance.randrange(len(contents))] ^= 1 << chance.randrange(8)
    path.write_bytes(contents)


def _dies_of_memory(trouble: str) -> Case:
    """A real abort in XLA, or a real kill by the kernel, in the first attempt."""

    def case(bench: Bench, chance: random.Random) -> tuple[Run, int]:
        run, at = bench.new_run(), chance.randrange(10, bench.reference.steps - 20)
        with memory_group(GROUP_BYTES if trouble == "grow" else None) as group:
            run.start("--trouble", trouble, "--at", str(at), group=group)
            run.finish()
        return run, len(run.deaths())

    return case


ALL = tuple(SCRIPTS)
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "SIGKILL": (_signalled(signal.SIGKILL, 4), ALL),
    "SIGABRT": (_signalled(signal.SIGABRT, 4), ALL),
    "writing": (
        _while_writing(2),
        ("image_classifier", "text_transformer", "pipeline_with_callbacks", "several_fits"),
    ),
    "truncated": (_damaged(_truncate), ("autoencoder", "pipeline_with_callbacks", "several_fits", "ledger")),
    "flipped": (_damaged(_flip), ("image_classifier", "text_transformer", "several_fits", "ledger")),
    "abort": (_dies_of_memory("abort"), ("ledger", "ledger")),
    "kernel": (_dies_of_memory("grow"), ("ledger", "ledger")),
}


def _measure(script: str, wanted: list[str], folder: Path) -> list[dict[str, Any]]:
    """All cases of one script, one after the other."""
    found: list[dict[str, Any]] = []
    folder.mkdir()
    bench = Bench(SCRIPTS[script], folder)
    for name in wanted:
        case, scripts = CASES[name]
        for number in range(scripts.count(script)):
            chance = random.Random(zlib.crc32(f"{name} {script} {number}".encode()))
            run, kills = case(bench, chance)
            code = run.finish()
            row = {"case": name, "script": script, "kills": kills, "code": code}
            found.append({**row, "identical": bench.is_identical(run), "deaths": run.deaths()})
            print({name: found[-1][name] for name in (*row, "identical")}, file=sys.stderr, flush=True)
            if not found[-1]["identical"]:
                print((run.folder / "output").read_text()[-3000:], file=sys.stderr, flush=True)
    return found


def main(names: list[str]) -> int:
    """Run the cases asked for; 1 where one came to something else."""
    wanted = names or list(CASES)
    scripts = [script for script in SCRIPTS if any(script in CASES[name][1] for name in wanted)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        measured = pool.map(lambda script: _measure(script, wanted, Path(folder) / script), scripts)
        rows = [row for found in measured for row in found]
    kills = sum(row["kills"] for row in rows)
    wrong = [row for row in rows if not row["identical"] or row["kills"] == 0]
    print(f"{'case':10} {'script':24} kills identical")
    for row in sorted(rows, key=lambda row: (wanted.index(row["case"]), row["script"])):
        print(f"{row['case']:10} {row['script']:24} {row['kills']:5} {'yes' if row['identical'] else 'NO'}")
    print(f"{kills} kills in {len(rows)} runs, {len(rows) - len(wrong)} of them identical")
    if not names:
        write_results(
            "kills", {"kills": kills, "runs": len(rows), "wrong": len(wrong), "rows": rows}, quiet=True
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
