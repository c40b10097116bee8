"""Keras' own tests, with `fit`, `evaluate`, `predict` and `..._on_batch` of keras.Model going through memfit.

The tests are those inside the installed wheel of Keras (`keras/src/**/*_test.py`), run by pytest in processes
of their own. First plainly: that tells which of them reach one of these methods, and which pass. Those go
each of the ways, where the same must pass:

whole: `memfit.fit` and `memfit.protect` without a budget, the guard alone.
split: with `micro_batch_size=1`. halves: with half of the batch.
budget: `memfit.fit` planned for 1 GiB under a limit of 4.
run: the tests as they are, by `memfit run -m pytest`.

A test that differs runs once more by itself, plainly and its way, so that chance is told from memfit.
`_keras_suite_reasons.py` says of those that a way must change why; any other that differs is a bug, and the
benchmark ends with 1. `python benchmarks/keras_suite.py trainers models --way whole` runs some groups or some
ways, and figures of the others stay as they were.

The group `hub` is no tests: models of keras-hub and keras.applications with random weights, trained plainly,
whole and split, in float64 and in float32, and their estimates beside the measured peaks.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _environment import python_with
from _keras_suite_models import MODELS
from _keras_suite_reasons import reason_for
from _results import read_figures, write_results

HERE = Path(__file__).parent
ROOT = HERE.parent
HUB = "hub"
GROUPS = (
    "trainers",
    "models",
    "callbacks",
    "optimizers",
    "saving",
    "metrics",
    "losses",
    "layers",
    "distillation",
    "export",
    "initializers",
    "legacy",
    "quantizers",
    "random",
    "regularizers",
    "utils",
    "wrappers",
    HUB,
)
WAYS = ("whole", "split", "halves", "budget", "run")
SILENCE_SECONDS = 240.0  # after which a test is taken to hang
LAST_WORDS = 2000
SAME = 1e-6  # of the furthest that a weight has moved: some layers compute in float32 whatever their type

Results = dict[str, dict[str, Any]]  # by test: its outcome, how often it called, why it failed


def main() -> None:
    """Run the groups and ways asked for; exits with 1 where a test differs and nothing says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("groups", nargs="*", default=GROUPS)
    parser.add_argument("--way", action="append", choices=WAYS)
    chosen = parser.parse_args()
    for group in chosen.groups:
        before = read_figures("keras_suite").get(group, {})
        measured = _measure_models() if group == HUB else _measure(group, chosen.way or WAYS, before)
        figures = {**read_figures("keras_suite"), group: measured}  # others may have been written meanwhile
        write_results("keras_suite", figures, quiet=True)
        _show(group, figures[group])
    sys.exit(1 if any(_unexplained(ways) for ways in read_figures("keras_suite").values()) else 0)


def _measure(group: str, ways: Iterable[str], before: dict[str, Any]) -> dict[str, Any]:
    """The figures of a group, and for each way what differs."""
    plain = run_tests(find_tests(group), "plain")
    reaching = [test for test, result in plain.items() if result["calls"]]
    passed = {test for test in reaching if plain[test]["outcome"] == "passed"}
    ours = {way: figures for way, figures in before.items() if way in WAYS}
    for way in ways:
        ours[way] = _compare(way, sorted(passed))
    return {
        "tests": len(plain),
        "reach_a_method": len(reaching),
        "passed_plainly": len(passed),
        "failed_plainly": {t: _line(plain[t]) for t in reaching if plain[t]["outcome"] == "failed"},
        **ours,
    }


def _measure_models() -> dict[str, Any]:
    """What becomes of each model, in processes of their own."""
    figures: dict[str, Any] = {}
    for name in MODELS:
        figures[name] = {}
        for what in ("float64", "float32", "peaks"):
            command = [_python(), os.fspath(HERE / "_keras_suite_models.py"), what, name]
            done = subprocess.run(
                command,
                env=_environment("plain", Path(os.devnull)),
                capture_output=True,
                text=True,
                check=False,
            )
            answer = done.stdout.splitlines()[-1] if done.returncode == 0 else json.dumps(done.stderr[-500:])
            figures[name][what] = json.loads(answer)
            print(name, what, answer, flush=True)
    return figures


def _compare(way: str, tests: list[str]) -> dict[str, Any]:
    """Tests that pass plainly, run one way; those that differ go once more, both ways."""
    began = time.perf_counter()
    results = run_tests(tests, way)
    failed = [test for test in tests if not _is_passed(results, test)]
    if failed:
        again, plainly = run_tests(failed, way), run_tests(failed, "plain")
        by_chance = [test for test in failed if _is_passed(again, test) or not _is_passed(plainly, test)]
    else:
        by_chance = []
    differing = {test: _line(results.get(test, {})) for test in failed if test not in by_chance}
    expected = {test: why for test, line in differing.items() if (why := reason_for(test, line))}
    return {
        "run": len(tests),
        "passed": len(tests) - len(differing),
        "by_chance": by_chance,
        "expected": expected,
        "bugs": {test: line for test, line in differing.items() if test not in expected},
        "seconds": round(time.perf_counter() - began),
    }


def _is_passed(results: Results, test: str) -> bool:
    return results.get(test, {}).get("outcome") == "passed"


def _line(result: dict[str, Any]) -> str:
    return " ".join(str(result.get("reason", "did not run")).split())[:500]


def find_tests(group: str) -> list[str]:
    """The files with tests of a group, as paths from the folder that Keras is in."""
    folder = _site_packages()
    return sorted(
        path.relative_to(folder).as_posix() for path in (folder / "keras/src" / group).rglob("*_test.py")
    )


@functools.cache
def _python() -> str:
    """The Python that has what the tests import."""
    return os.fspath(python_with("keras_suite"))


@functools.cache
def _site_packages() -> Path:
    ask = "from importlib.util import find_spec; print(find_spec('keras').origin)"
    done = subprocess.run([_python(), "-c", ask], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip()).parents[1]


def run_tests(tests: list[str], way: str) -> Results:
    """What becomes of tests, or of files of them, one way; one that ends its process is not run again."""
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        wanted: list[str] | None = tests if any("::" in test for test in tests) else None
        files = sorted({test.partition("::")[0] for test in tests})
        while files and wanted != []:
            ended = _run_process(files, wanted, way, Path(folder), results)
            culprit = next((test for test, result in results.items() if "outcome" not in result), None)
            if culprit is None:
                if ended is not None:
                    raise RuntimeError(f"{way}: pytest ended with {ended}")
                break
            results[culprit] |= {"outcome": "failed", "calls": 1, "reason": f"its process ended: {ended}"}
            wanted = [test for test in wanted or _collect(files) if test not in results]
            files = sorted({test.partition("::")[0] for test in wanted})
    return results


def _run_process(
    files: list[str], wanted: list[str] | None, way: str, folder: Path, results: Results
) -> str | None:
    """Run pytest once, with the results as far as it gets; how it ended, if not as it should."""
    events, selection = folder / "events.jsonl", folder / "tests.json"
    events.write_text("")
    environment = _environment(way, events)
    if wanted is not None:
        selection.write_text(json.dumps(wanted))
        environment["KERAS_SUITE_TESTS"] = os.fspath(selection)
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            _command(way, files), cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        hangs = _wait(process, events)
    for line in events.read_text().splitlines():
        event = json.loads(line)
        name = event.pop("test", None)
        if name is not None:
            results.setdefault(name, {}).update(event)
    if hangs:
        return f"no end after {SILENCE_SECONDS:.0f} s"
    if process.returncode in (0, 1, 5):  # passed, some failed, none selected
        return None
    return f"exit code {process.returncode}: {(folder / 'output.txt').read_text()[-LAST_WORDS:]}"


def _wait(process: subprocess.Popen[bytes], events: Path) -> bool:
    """Wait for the end of a process; whether it had to be ended since nothing happened any more."""
    while True:
        try:
            process.wait(1.0)
            return False
        except subprocess.TimeoutExpired:
            if time.time() - events.stat().st_mtime > SILENCE_SECONDS:
                process.terminate()
                process.wait()
                return True


def _command(way: str, files: list[str]) -> list[str]:
    site_packages = _site_packages()
    pytest = [
        *("pytest", "-p", "_keras_suite_plugin", "-p", "no:cacheprovider", "-p", "no:randomly", "-q"),
        *(
            "-c",
            os.devnull,
            "--rootdir",
            os.fspath(site_packages),
            "--tb=short",
            "--continue-on-collection-errors",
            "--import-mode=importlib",
        ),
        *(os.fspath(site_packages / file) for file in files),
    ]
    if way == "run":
        return [_python(), "-m", "memfit", "run", "--max-restarts", "0", "-m", *pytest]
    return [_python(), "-m", *pytest]


def _environment(way: str, events: Path) -> dict[str, str]:
    paths = (os.fspath(HERE), os.fspath(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "KERAS_SUITE_EVENTS": os.fspath(events),
        "KERAS_SUITE_WAY": way,
        "MEMFIT_HOME": os.fspath(events.parent / "memfit"),
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _collect(files: list[str]) -> list[str]:
    """The names of all tests in some files."""
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment("plain", Path(folder) / "events.jsonl")
        command = [*_command("plain", files), "--collect-only"]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    return [line for line in done.stdout.splitlines() if "::" in line]


def _show(group: str, figures: dict[str, Any]) -> None:
    for way in WAYS:
        if way in figures:
            found = figures[way]
            print(
                f"{group:12} {way:7} run {found['run']:4} passed {found['passed']:4} expected "
                f"{len(found['expected']):3} bugs {len(found['bugs']):3} chance {len(found['by_chance'])} "
                f"({found['seconds']} s)",
                flush=True,
            )
            for test, line in found["bugs"].items():
                print(f"  {test}: {line}", flush=True)


def _unexplained(figures: dict[str, Any]) -> bool:
    return any(figures[way]["bugs"] for way in WAYS if way in figures) or any(
        abs(model["float64"][way]) > SAME
        for model in figures.values()
        if isinstance(model, dict) and "float64" in model
        for way in ("whole", "split")
        if not (way == "split" and model["float64"]["notes_split"])
    )


if __name__ == "__main__":
    main()
