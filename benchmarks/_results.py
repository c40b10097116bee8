"""Where benchmarks leave their figures: a JSON file that says machine, versions and date."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from memfit.devices import find_packages
from memfit.version import __version__


def read_figures(name: str) -> dict[str, Any]:
    """The figures of the last run; none if there was none."""
    path = _path(name)
    return dict(json.loads(path.read_text())["figures"]) if path.exists() else {}


def write_results(name: str, figures: dict[str, Any], *, quiet: bool = False) -> None:
    """Write `benchmarks/results/NAME.json`, and print the figures unless it shall be quiet."""
    results = {
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "versions": {"memfit": __version__, **{package.name: package.version for package in find_packages()}},
        "figures": figures,
    }
    path = _path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    if quiet:
        return
    print(json.dumps(figures, indent=2))
    print(f"written: benchmarks/results/{name}.json")


def _path(name: str) -> Path:
    return Path(__file__).parent / "results" / f"{name}.json"
