"""How long lint takes for all of Keras, what it finds in installed and own code, and how often it is wrong.

The sample is drawn by a fixed seed. Verdicts on it are given by a person, in the results file: they are
carried over to the next run for findings that are still there; what has none is listed as not judged.
Where there are fewer findings than the sample would take, all are in it. Rules were mended by looking at
these same findings, so the share of false alarms is not that of code nobody has seen.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _docstrings import write_examples
from _results import read_figures, write_results

from memfit.core.records import LintFinding
from memfit.linting.lint_files import lint

ROOT = Path(__file__).parent.parent
SAMPLE, SEED = 30, 9
TARGET_SECONDS, TARGET_SHARE = 30, 0.10


def main() -> None:
    """Lint everything, draw the sample, and write the figures with the verdicts there are."""
    keras, tensorflow = _package("keras"), _package("tensorflow")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples = write_examples(keras, folder) + write_examples(tensorflow, folder)
        places = {
            "keras": keras,
            "tensorflow": tensorflow,
            "docstring examples of both": folder,
            **{f"memfit {part}": ROOT / part for part in ("examples", "tests", "benchmarks", "src")},
        }
        found = {place: _look(place, path) for place, path in places.items()}
    everything = [finding for one in found.values() for finding in one.pop("findings")]
    sample = sorted(random.Random(SEED).sample(everything, min(SAMPLE, len(everything))), key=str)
    judged = _judged(sample)
    write_results("lint", {"docstring_examples": examples, "places": found, **judged})
    _say(found["keras"]["seconds"], judged)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _look(place: str, path: Path) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    found = lint([str(path)])
    return {
        "files": found.files,
        "unread": len(found.unread),
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "found": dict(sorted(Counter(finding.rule for finding in found.findings).items())),
        "findings": [_entry(place, path, finding) for finding in found.findings],
    }


def _entry(place: str, path: Path, finding: LintFinding) -> dict[str, Any]:
    where = Path(finding.path).relative_to(path)
    return {
        "place": f"{place}: {where}:{finding.line}",
        "rule": finding.rule,
        "severity": finding.severity,
        "source": finding.source.strip(),
        "message": finding.message,
    }


def _judged(sample: list[dict[str, Any]]) -> dict[str, Any]:
    before = {_key(one): one for one in read_figures("lint").get("sample", [])}
    for one in sample:
        known = before.get(_key(one), {})
        one["verdict"], one["why"] = known.get("verdict", "not judged"), known.get("why", "")
    verdicts = Counter(one["verdict"] for one in sample)
    known = verdicts["true"] + verdicts["false alarm"]
    share = round(verdicts["false alarm"] / known, 3) if known else None
    return {
        "verdicts": dict(verdicts),
        "false_alarm_share": share,
        "public_code": read_figures("lint").get("public_code", {}),  # judged once, and not kept here
        "seed": SEED,
        "sample": sample,
    }


def _key(one: dict[str, Any]) -> tuple[str, ...]:
    return one["place"].rpartition(":")[0], one["rule"], one["source"]


def _say(seconds: float, judged: dict[str, Any]) -> None:
    print(f"Keras in {seconds} s (target {TARGET_SECONDS}); false alarms {judged['false_alarm_share']} "
          f"(target {TARGET_SHARE}); verdicts {judged['verdicts']}")  # fmt: skip


if __name__ == "__main__":
    main()
