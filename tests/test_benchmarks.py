"""Benchmarks: each one command, and what each declares belongs to one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_every_extra_of_a_benchmark_belongs_to_one() -> None:
    spec = importlib.util.spec_from_file_location("_environment", FOLDER / "_environment.py")
    assert spec is not None
    assert spec.loader is not None
    environment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(environment)
    extras = environment.extras()
    assert extras
    for name, packages in extras.items():
        assert (FOLDER / f"{name}.py").is_file(), name
        assert packages, name
