"""Program -> Estimate: several simulated processes, each of several steps."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator

from memfit.estimates.executors import Simulation, StepMemory
from memfit.records import Estimate, LayerBytes, Parts, Program

_PROCESSES = 3
_STEPS = 3  # of each, after the first
_LAYERS = 10
_MARGIN = 1.04  # what runs differ by beyond what simulations do


def estimate(program: Program, *, workers: int | None = None) -> Estimate:
    """What a warm step of a program needs."""
    began = time.perf_counter()
    workers = workers or os.cpu_count() or 1
    peaks = list(itertools.islice(_warm_peaks(program, workers), _PROCESSES * _STEPS))
    peak = statistics.median_low([memory.peak_bytes for _, _, memory in peaks])
    seed, step, _ = next(one for one in peaks if one[2].peak_bytes == peak)
    holders = _holders(program, workers, seed, step, peak)
    return Estimate(
        batch_size=program.batch_size,
        method=program.method,
        peak_bytes=peak,
        safe_bytes=round(_MARGIN * max(memory.peak_bytes for _, _, memory in peaks)),
        parts=_parts(holders),
        layers=_layers(holders),
        left_out=program.left_out,
        seconds=time.perf_counter() - began,
    )


def _warm_peaks(program: Program, workers: int) -> Iterator[tuple[int, int, StepMemory]]:
    """Process, step and memory of one warm step after the other."""
    for seed in itertools.count():
        simulation = Simulation(program, workers=workers, seed=seed)
        simulation.step()
        for step in range(1, 1 + _STEPS):
            yield seed, step, simulation.step()


def _holders(
    program: Program, workers: int, seed: int, step: int, peak_bytes: int
) -> dict[tuple[str, str], int]:
    """Who holds what at the peak of one step."""
    simulation = Simulation(program, workers=workers, seed=seed)
    for _ in range(step):
        simulation.step()
    return simulation.step(holders_at=peak_bytes).holders


def _parts(holders: dict[tuple[str, str], int]) -> Parts:
    found = Counter[str]()
    for (part, _), size in holders.items():
        found[f"{part}_bytes"] += size
    return Parts(**found)


def _layers(holders: dict[tuple[str, str], int]) -> tuple[LayerBytes, ...]:
    found = Counter[str]()
    for (_, layer), size in holders.items():
        if layer:
            found[layer] += size
    return tuple(LayerBytes(name, size) for name, size in found.most_common(_LAYERS))
