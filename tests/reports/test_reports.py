"""Reports at 80 columns, against golden files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from golden import check_golden, render
from memfit.records import Budget, Demo, DemoRow, Doctor, HostMemory, OutOfMemory, Package
from memfit.reports.bars import bar
from memfit.reports.demos import show_demo
from memfit.reports.doctors import show_doctor

GOLDEN = Path(__file__).parent / "golden"
MIB, GIB = 2**20, 2**30

OOM = OutOfMemory(
    "OOM when allocating tensor", 64 * MIB, (64, 128, 128, 16), "float", "CPU:0", "bfc", "Conv2D"
)
PLAIN = DemoRow("plain", True, 128 * MIB, 64, (), 13.5, error=OOM)
OURS = DemoRow("memfit", False, 191 * MIB, 32, (0.055718, 0.0443971, 0.0215), 27.5, 1, 10.6)
UNLIMITED = DemoRow("unlimited", False, 320 * MIB, 64, (0.055718, 0.044397, 0.0215), 18.4)
DEMO = Demo(192 * MIB, 64, (PLAIN, OURS, UNLIMITED), 3, 256, "CPU:0", 61.0)

PACKAGES = tuple(
    Package(name, version, supported)
    for name, version, supported in (
        ("python", "3.12.1", ">=3.11,<3.14"),
        ("tensorflow", "2.21.0", ">=2.18,<2.22"),
        ("keras", "3.15.1", ">=3.12"),
    )
)
DOCTOR = Doctor(
    memfit_version="0.1.0",
    packages=PACKAGES,
    devices=("/device:CPU:0",),
    allocator="TensorFlow's plain CPU allocator: no limit and no statistics",
    host=HostMemory(24 * GIB, 20 * GIB),
    process_bytes=525 * MIB,
    budget=Budget(18 * GIB, "machine", None, 2 * GIB),
)


def test_demo() -> None:
    check_golden(GOLDEN / "demo.txt", render(show_demo(DEMO)))


def test_demo_in_a_budget_that_is_large_enough() -> None:
    plain = dataclasses.replace(UNLIMITED, name="plain")
    ours = dataclasses.replace(UNLIMITED, name="memfit")
    demo = dataclasses.replace(DEMO, budget_bytes=GIB, rows=(plain, ours, UNLIMITED))
    check_golden(GOLDEN / "demo_fits.txt", render(show_demo(demo)))


def test_doctor() -> None:
    check_golden(GOLDEN / "doctor.txt", render(show_doctor(DOCTOR)))


def test_doctor_with_everything_unusual() -> None:
    doctor = dataclasses.replace(
        DOCTOR,
        packages=(PACKAGES[0], Package("tensorflow", None, ">=2.18,<2.22", "not installed")),
        devices=(),
        allocator="unknown without TensorFlow",
        host=HostMemory(24 * GIB, 20 * GIB, 4 * GIB, 3 * GIB),
        budget=Budget(2 * GIB, "cgroup", None, GIB),
        warnings=("tensorflow: not installed",),
    )
    check_golden(GOLDEN / "doctor_unusual.txt", render(show_doctor(doctor)))


@pytest.mark.parametrize(
    ("value", "full", "expected"),
    [(4, 4, "████"), (2, 4, "██"), (1, 32, "▏"), (9, 4, "████"), (0, 4, ""), (-1, 4, ""), (3, 0, ""),
     (float("nan"), 4, ""), (float("inf"), 4, "████")],
)  # fmt: skip
def test_bars(value: float, full: float, expected: str) -> None:
    assert bar(value, full, 4) == expected
