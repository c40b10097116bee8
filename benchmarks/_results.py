"""Where benchmarks leave their figures: a JSON file with machine, CPU flags, versions, date and commit."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from memfit.core.version import __version__
from memfit.machine import find_packages


def read_figures(name: str) -> dict[str, Any]:
    """The figures of the last run; none if there was none."""
    path = _path(name)
    return dict(json.loads(path.read_text())["figures"]) if path.exists() else {}


def write_results(name: str, figures: dict[str, Any], *, quiet: bool = False) -> None:
    """Write `benchmarks/results/NAME.json`, and print the figures unless it shall be quiet."""
    results = {
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "cpu_flags": _cpu_flags(),
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


def _commit() -> str:
    """The commit that was measured, with a mark where files had changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu_flags() -> list[str]:
    """The vector units of the CPU, by which TensorFlow chooses its kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split()
    return sorted(flag for flag in flags if flag.startswith(("avx", "amx")))


def _path(name: str) -> Path:
    return Path(__file__).parent / "results" / f"{name}.json"
