"""Whether a step runs where no more than so much memory is to be had."""

from __future__ import annotations

import os

from memfit.estimates.allocators import OutOfMemory
from memfit.estimates.executors import Simulation
from memfit.records import Estimate, Fit, Program

_PROCESSES = 4
_STEPS = 3
_SURE = (
    1.08  # how much smaller or larger the pool is that decides, since real runs differ from simulated ones
)
_NO = 1.05
_FAR_ABOVE = 1.5  # so far beyond the bytes in use, gaps in the pool do not matter
_FAR_BELOW = 0.6  # nor does it help that operations wait for each other's memory


def fits(program: Program, found: Estimate, limit_bytes: int, *, workers: int | None = None) -> Fit:
    """Whether a program runs under a hard limit, of which an estimate has said what it needs.

    What is in use is not all that counts: a pool has gaps. So the program is run against a pool of this size,
    for sure one that is a little smaller, and for the answer no one that is a little larger.
    """
    if fits_for_sure(program, found, limit_bytes, workers=workers):
        return "for sure"
    if limit_bytes < _FAR_BELOW * found.low_bytes:
        return "no"
    workers, roomy = workers or os.cpu_count() or 1, int(limit_bytes * _NO)
    runs = (_runs(program, roomy, workers, seed, quick_loops=True) for seed in _seeds(program))
    return "maybe" if any(runs) else "no"


def fits_for_sure(program: Program, found: Estimate, limit_bytes: int, *, workers: int | None = None) -> bool:
    """Whether there is no doubt about it, where nobody asks how much doubt there is otherwise."""
    if limit_bytes >= _FAR_ABOVE * found.safe_bytes:
        return True
    if limit_bytes < _FAR_BELOW * found.low_bytes:
        return False
    workers, narrow = workers or os.cpu_count() or 1, int(limit_bytes / _SURE)
    return all(_runs(program, narrow, workers, seed) for seed in _seeds(program))


def _seeds(program: Program) -> range:
    return range(1 if program.method == "xla" else _PROCESSES)


def _runs(program: Program, limit_bytes: int, workers: int, seed: int, *, quick_loops: bool = False) -> bool:
    try:
        simulation = Simulation(
            program, workers=workers, limit_bytes=limit_bytes, seed=seed, loops_finish_first=quick_loops
        )
        for _ in range(_STEPS):
            simulation.step()
    except OutOfMemory:
        return False
    return True
