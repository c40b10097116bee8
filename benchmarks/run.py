"""Time of scripts under `memfit run` against plain Python with the same allocator and no fault.

Both ways alternate, and a ratio is that of two runs side by side. A long run says what a step costs, a tiny
fit what the start costs, without the time of planning, which the journal says; so it does of checkpoints.
The time of the processors is measured as well, since other work on the machine moves it less.
`--seconds` and `--rounds` make it shorter or longer; named scripts are measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from _processes import QUIET
from _results import read_figures, write_results

HERE = Path(__file__).parent
LONG = ("autoencoder", "text_transformer")
TINY = (str(HERE / "scripts" / "tiny.py"),)
LIMIT_MEBIBYTES = 2048  # more than the scripts need
FEW, MORE = 1, 4  # epochs that tell how long one takes


class Seconds(NamedTuple):
    """How long a command took, by the clock and on all processors together."""

    clock: float
    processors: float


def _plain(script: tuple[str, ...]) -> Seconds:
    """Time of a script under plain Python."""
    limit = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(LIMIT_MEBIBYTES)}
    return _seconds([sys.executable, *script], limit)


def _supervised(script: tuple[str, ...]) -> tuple[Seconds, dict[str, Any]]:
    """Time of a script under `memfit run`, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        ours = ["run", "--budget", f"{LIMIT_MEBIBYTES}MiB", "--report", str(report)]
        seconds = _seconds([sys.executable, "-m", "memfit", *ours, *script], {"MEMFIT_HOME": folder})
        return seconds, json.loads(report.read_text())


def _seconds(command: list[str], environment: dict[str, str]) -> Seconds:
    began, processors = time.perf_counter(), _processor_seconds()
    subprocess.run(command, env={**os.environ, **QUIET, **environment}, capture_output=True, check=True)
    return Seconds(time.perf_counter() - began, _processor_seconds() - processors)


def _processor_seconds() -> float:
    """What all commands so far have taken, with the processes that they have started."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _planning_seconds(report: dict[str, Any]) -> float:
    return sum(training["plan"]["seconds"] for training in report["trainings"] if training["plan"])


def _epochs_for(script: str, seconds: float) -> int:
    """How many epochs take so long under plain Python."""
    few, more = (_plain((script, "--epochs", str(epochs))).clock for epochs in (FEW, MORE))
    return max(FEW, round((seconds - few) * (MORE - FEW) / (more - few)))


def _long(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The ratio of a long run, and what checkpoints cost of it."""
    script = str(HERE.parent / "examples" / f"{name}.py")
    epochs = _epochs_for(script, seconds)
    rows = []
    for _ in range(rounds):
        plain = _plain((script, "--epochs", str(epochs)))
        ours, report = _supervised((script, "--epochs", str(epochs)))
        planning = _planning_seconds(report)
        row = {
            "plain_seconds": round(plain.clock, 2),
            "seconds": round(ours.clock, 2),
            "ratio": round(ours.clock / plain.clock, 4),
            "ratio_without_planning": round((ours.clock - planning) / plain.clock, 4),
            "ratio_of_processor_time": round(ours.processors / plain.processors, 4),
            "planning_seconds": round(planning, 2),
            "checkpoints": report["checkpoints"],
            "checkpoint_share": round(report["checkpoint_seconds"] / ours.clock, 5),
        }
        rows.append(row)
        print(name, row, file=sys.stderr, flush=True)
    names = ("ratio", "ratio_without_planning", "ratio_of_processor_time", "checkpoint_share")
    medians = {key: statistics.median(row[key] for row in rows) for key in names}
    return {"epochs": epochs, **medians, "rounds": rows}


def _start(rounds: int) -> dict[str, Any]:
    """What the start costs beside planning."""
    rows = []
    for _ in range(rounds):
        plain = _plain(TINY)
        ours, report = _supervised(TINY)
        planning = _planning_seconds(report)
        row = {"plain_seconds": plain.clock, "seconds": ours.clock, "planning_seconds": planning}
        rows.append({**row, "start_seconds": ours.clock - plain.clock - planning})
        print("start", rows[-1], file=sys.stderr, flush=True)
    names = ("plain_seconds", "seconds", "planning_seconds", "start_seconds")
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in names}


def main() -> None:
    """Measure the start and the long runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", default=LONG, help="long ones; the others stay as they were")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    start = _start(options.rounds)
    long = dict(read_figures("run").get("long", {}))
    long |= {name: _long(name, options.seconds, options.rounds) for name in options.scripts}
    if options.dry:
        print(json.dumps({"start": start, "long": long}, indent=2))
    else:
        write_results("run", {"start": start, "long": long})


if __name__ == "__main__":
    main()
