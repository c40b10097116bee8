"""Program -> Estimate: several simulated processes, each of several steps."""

from __future__ import annotations

import os
import statistics
from collections import Counter

from memfit.estimates.buffers import Owner, StepMemory
from memfit.estimates.calibrations import what_is_unknown
from memfit.estimates.executors import Simulation
from memfit.records import Estimate, LayerBytes, Parts, Program

_PROCESSES = 4
_STEPS = 3  # of each, after the first
_LAYERS = 10
_POINTS = 76
_BELOW = 1.04  # what runs differ by beyond what simulations do, downwards and upwards
_ABOVE = {"graph": 1.13, "xla": 1.04}


def estimate(program: Program, *, workers: int | None = None) -> Estimate:
    """What a warm step of a program needs."""
    workers = workers or os.cpu_count() or 1
    processes = 1 if program.method == "xla" else _PROCESSES
    steps = [step for seed in range(processes) for step in _warm_steps(program, workers, seed)]
    typical = sorted(steps, key=lambda step: step.peak_bytes)[(len(steps) - 1) // 2]
    peaks = [step.peak_bytes for step in steps]
    holders = typical.holders()
    return Estimate(
        batch_size=program.batch_size,
        method=program.method,
        peak_bytes=typical.peak_bytes,
        low_bytes=round(min(*peaks, _with_quick_loops(program, workers) or min(peaks)) / _BELOW),
        safe_bytes=round(max(peaks) * _ABOVE[program.method]),
        parts=_parts(holders),
        layers=_layers(holders),
        timeline=typical.timeline(_POINTS),
        left_out=(*program.left_out, *what_is_unknown(program)),
    )


def _warm_steps(program: Program, workers: int, seed: int, **options: bool) -> list[StepMemory]:
    simulation = Simulation(program, workers=workers, seed=seed, **options)
    simulation.step()
    return [simulation.step() for _ in range(_STEPS)]


def _with_quick_loops(program: Program, workers: int) -> int | None:
    """What it comes to if loops finish each time round before the next; None without loops."""
    if not any(op.times > 1 for op in program.graph.ops if op.role == "call"):
        return None
    steps = _warm_steps(program, workers, 0, loops_finish_first=True)
    return round(statistics.median(step.peak_bytes for step in steps))


def _parts(holders: dict[Owner, int]) -> Parts:
    found = Counter[str]()
    for (part, _), size in holders.items():
        found[f"{part}_bytes"] += size
    return Parts(**found)


def _layers(holders: dict[Owner, int]) -> tuple[LayerBytes, ...]:
    found = Counter[str]()
    for (_, layer), size in holders.items():
        if layer:
            found[layer] += size
    return tuple(LayerBytes(name, size) for name, size in found.most_common(_LAYERS))
