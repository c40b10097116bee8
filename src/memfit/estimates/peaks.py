"""Program -> Estimate: several simulated processes, each of several steps."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict

from memfit.estimates.buffers import Owner, StepMemory
from memfit.estimates.calibrations import what_is_unknown
from memfit.estimates.executors import Simulation
from memfit.records import Estimate, LayerBytes, Parts, Program

_PROCESSES = 4
_STEPS = 3  # of each, after the first
_ALIKE = 1.02  # where two processes differ by no more, others will not either
_LAYERS = 10
_POINTS = 76
_BELOW = 1.04  # what runs differ by beyond what simulations do, downwards and upwards
_ABOVE = {"graph": 1.1, "xla": 1.07}


def estimate(
    program: Program, *, workers: int | None = None, processes: int = _PROCESSES, warm_steps: int = _STEPS
) -> Estimate:
    """What a warm step of a program needs, as seen in up to so many simulated processes."""
    workers = workers or os.cpu_count() or 1
    steps = _simulated(program, workers, processes, warm_steps)
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


def _simulated(program: Program, workers: int, processes: int, warm_steps: int) -> list[StepMemory]:
    """Warm steps of as many processes as it takes to see how they differ."""
    steps = _warm_steps(program, workers, 0, warm_steps)
    for seed in range(1, 1 if program.method == "xla" else processes):
        steps += _warm_steps(program, workers, seed, warm_steps)
        peaks = [step.peak_bytes for step in steps]
        if max(peaks) <= _ALIKE * min(peaks):
            break
    return steps


def _warm_steps(
    program: Program, workers: int, seed: int, count: int = _STEPS, **options: bool
) -> list[StepMemory]:
    simulation = Simulation(program, workers=workers, seed=seed, **options)
    simulation.step()
    return [simulation.step() for _ in range(count)]


def _with_quick_loops(program: Program, workers: int) -> int | None:
    """What it comes to if loops finish each time round before the next; None without loops."""
    if not any(op.times > 1 for op in program.graph.ops if op.role == "call"):
        return None
    steps = _warm_steps(program, workers, 0, loops_finish_first=True)
    return round(statistics.median(step.peak_bytes for step in steps))


def _parts(holders: dict[Owner, int]) -> Parts:
    found = Counter[str]()
    for (part, _, _), size in holders.items():
        found[f"{part}_bytes"] += size
    return Parts(**found)


def _layers(holders: dict[Owner, int]) -> tuple[LayerBytes, ...]:
    """What holds most, each layer with its largest line; what is in no layer goes by its lines."""
    held = defaultdict[str, Counter[str]](Counter)
    for (_, layer, line), size in holders.items():
        held[layer][line] += size
    outside = held.pop("", Counter())
    found = [LayerBytes(layer, sizes.total(), _largest(sizes)) for layer, sizes in held.items()]
    found += [LayerBytes("", size, line) for line, size in outside.items() if line]
    return tuple(sorted(found, key=lambda one: -one.bytes)[:_LAYERS])


def _largest(sizes: Counter[str]) -> str:
    return max(filter(None, sizes), key=sizes.__getitem__, default="")
