"""Scripts of strangers in a budget: plain Python runs out, memfit trains to the numbers of unlimited Python.

Each script of `tests/scripts` runs four times, with oneDNN and without it: as it is without a limit; as it is
in its budget, which plain Python does not survive; with a smaller batch in its budget, which it does; and
unmodified under `memfit run`. What was measured is written down at once; a run that was interrupted goes on
where it was; names choose scripts, `--again` begins anew.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _processes import QUIET
from _results import read_figures, write_results

from memfit.core.units import parse_size

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from strangers import FOLDER, STRANGERS, Stranger, numbers_in

PROGRESS = Path(__file__).parent / "results" / "scripts.partial.json"
WORKERS = 2
MOST_SECONDS = 600.0
WORLDS = {"oneDNN off": "0", "oneDNN on": "1"}
ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|DoesNotFit|NothingFits|Killed))\b", re.MULTILINE)


def measure(name: str, onednn: str) -> dict[str, Any]:
    """All four runs of one script in one world."""
    stranger, script = STRANGERS[name], (FOLDER / f"{name}.py").read_text()
    smaller = script.replace(stranger.large, stranger.small)
    budget = stranger.budget_in(onednn)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        unlimited = run(place / "unlimited", script, stranger, onednn)
        limited = run(place / "limited", script, stranger, onednn, limit=budget)
        small = run(place / "small", smaller, stranger, onednn, limit=budget)
        ours = run(place / "ours", script, stranger, onednn, budget=budget)
        report = json.loads((place / "ours" / "report.json").read_text())
    return {
        "budget": budget,
        "plain": limited["end"],
        "plain_smaller_batch": small["end"],
        "memfit": ours["end"],
        "ooms_survived": ours["error"].count("ran out of memory"),
        "starts": len(report["attempts"]),
        "peak_bytes": max((training["peak_bytes"] or 0 for training in report["trainings"]), default=None),
        "lines_of_standard_error": len(ours["error"].splitlines()),
        "seconds": {"unlimited": unlimited["seconds"], "memfit": ours["seconds"]},
        "difference": difference(unlimited["output"], ours["output"]),
        "difference_expected": stranger.not_same,
    }


def run(
    folder: Path,
    script: str,
    stranger: Stranger,
    onednn: str,
    *,
    limit: str | None = None,
    budget: str | None = None,
) -> dict[str, Any]:
    """Run a script to its end, whatever that is: under a limit plainly, or in a budget by `memfit run`."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    environment = {**os.environ, **QUIET, "TF_ENABLE_ONEDNN_OPTS": onednn, "MEMFIT_HOME": str(folder)}
    if limit is not None:
        environment["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(parse_size(limit) >> 20)
    ours = ["-m", "memfit", "run", "--budget", budget, "--report", "report.json"] if budget else []
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *ours, "train.py", *stranger.arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"end": "did not end", "output": "", "error": "", "seconds": MOST_SECONDS}
    return {
        "end": end_of(done.returncode, done.stderr),
        "output": done.stdout,
        "error": done.stderr,
        "seconds": round(time.perf_counter() - began, 1),
    }


def end_of(code: int, error: str) -> str:
    """The end of a process in a few words."""
    if code == 0:
        return "trained"
    if code < 0:
        return signal.Signals(-code).name
    raised = ERROR.findall(error)
    return raised[-1] if raised else f"exit code {code}"


def difference(wanted: str, found: str) -> float | None:
    """The largest difference between the results that were printed, relative to the larger."""
    pairs = list(zip(numbers_in(wanted), numbers_in(found), strict=False))
    differences = [abs(a - b) / max(abs(a), abs(b), 1e-3) for a, b in pairs]
    return round(max(differences), 7) if differences else None


def main(names: list[str], *, again: bool) -> int:
    """Measure what is left to be measured; 1 where a script did not train under memfit."""
    done: dict[str, Any] = {} if again or not PROGRESS.exists() else json.loads(PROGRESS.read_text())
    pairs = [(name, world) for name in names or STRANGERS for world in WORLDS]
    left = [pair for pair in pairs if " / ".join(pair) not in done]
    with ThreadPoolExecutor(WORKERS) as pool:
        all_found = pool.map(lambda pair: measure(pair[0], WORLDS[pair[1]]), left)
        for pair, found in zip(left, all_found, strict=True):
            done[" / ".join(pair)] = found
            PROGRESS.parent.mkdir(exist_ok=True)
            PROGRESS.write_text(json.dumps(done, indent=2) + "\n")
            print(f"{' / '.join(pair)}: {found}", file=sys.stderr)
    known = read_figures("scripts").get("scripts", {}) if names else {}
    scripts = {**known, **{name: done[name] for name in (" / ".join(pair) for pair in pairs)}}
    write_results("scripts", {**totals(scripts), "scripts": scripts}, quiet=True)
    PROGRESS.unlink()
    print(json.dumps(totals(scripts), indent=2))
    return int(any(one["memfit"] != "trained" for one in scripts.values()))


def totals(scripts: dict[str, Any]) -> dict[str, Any]:
    """How many of all runs ended as they should."""
    each = list(scripts.values())
    same = [one["difference"] for one in each if one["difference_expected"] is None]
    return {
        "runs": len(each),
        "plain_ran_out": sum(one["plain"] != "trained" for one in each),
        "plain_trained_with_a_smaller_batch": sum(one["plain_smaller_batch"] == "trained" for one in each),
        "memfit_trained": sum(one["memfit"] == "trained" for one in each),
        "ooms_survived": sum(one["ooms_survived"] for one in each),
        "largest_difference": max((one for one in same if one is not None), default=None),
    }


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    sys.exit(main(chosen, again="--again" in sys.argv[1:]))
