"""What a benchmark needs besides memfit: its extra `bench-NAME`, installed before the benchmark runs.

It goes into the environment of memfit, or into one of its own where it would replace TensorFlow or what
TensorFlow stands on. A benchmark asks `python_with` for the Python that has it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNTOUCHED = {"tensorflow", "tensorflow-cpu", "keras", "numpy", "ml-dtypes", "protobuf"}


def extras() -> dict[str, list[str]]:
    """The packages that each benchmark declares, by its name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared: dict[str, list[str]] = settings["project"]["optional-dependencies"]
    return {
        name.removeprefix("bench-"): packages
        for name, packages in declared.items()
        if name.startswith("bench-")
    }


def python_with(name: str) -> Path:
    """A Python that has what a benchmark declares; it is installed where it is missing."""
    packages = extras().get(name, [])
    here = Path(sys.executable)
    missing = _would_install(here, packages) if packages else set[str]()
    if not missing:
        return here
    if not missing & UNTOUCHED:
        _pip(here, "install", *packages)
        return here
    folder = ROOT / f".venv-bench-{name}"
    own = folder / "bin" / "python"
    if not own.exists():
        subprocess.run([here, "-m", "venv", folder], check=True)
    _pip(own, "install", *packages)
    return own


def _would_install(python: Path, packages: list[str]) -> set[str]:
    """The names of all packages that pip would install or replace."""
    report: dict[str, Any] = json.loads(_pip(python, "install", "--dry-run", "--report", "-", *packages))
    return {one["metadata"]["name"].lower().replace("_", "-") for one in report["install"]}


def _pip(python: Path, *arguments: str) -> str:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    python_with(sys.argv[1])
