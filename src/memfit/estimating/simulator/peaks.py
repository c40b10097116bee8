"""Program -> Estimate: several simulated processes, each of several steps."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping

from memfit.core.records import Estimate, Fit, KernelScratch, LayerBytes, Op, OpGraph, Parts, Probe, Program
from memfit.estimating.simulator.allocator import PoolExhausted
from memfit.estimating.simulator.buffers import Owner, StepMemory
from memfit.estimating.simulator.executor import Simulation

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
    """The peak of a warm step of a program, simulated in up to so many processes."""
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
    """The peak if loops finish each iteration before the next; None without loops."""
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
    """The largest holders, each layer with its largest line; what is in no layer goes by its lines."""
    held = defaultdict[str, Counter[str]](Counter)
    for (_, layer, line), size in holders.items():
        held[layer][line] += size
    outside = held.pop("", Counter())
    found = [LayerBytes(layer, sizes.total(), _largest(sizes)) for layer, sizes in held.items()]
    found += [LayerBytes("", size, line) for line, size in outside.items() if line]
    return tuple(sorted(found, key=lambda one: -one.bytes)[:_LAYERS])


def _largest(sizes: Counter[str]) -> str:
    return max(filter(None, sizes), key=sizes.__getitem__, default="")


_STEPS_UNDER_A_LIMIT = 3
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
    """Whether there is no doubt about it, without asking how much doubt there is otherwise."""
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
        for _ in range(_STEPS_UNDER_A_LIMIT):
            simulation.step()
    except PoolExhausted:
        return False
    return True


_NOTABLE_BYTES = 1 << 16
_MOST_KINDS = 6


def calibrate(program: Program, probe: Probe) -> Program:
    """A program whose operations need what a probe has seen, at the program's own size."""
    lines = {line.name: line for line in probe.kernels}
    return dataclasses.replace(
        program,
        graph=_calibrated(program.graph, lines),
        bodies=tuple(_calibrated(body, lines) for body in program.bodies),
        left_out=(*program.left_out, *probe.left_out),
    )


def _calibrated(graph: OpGraph, lines: Mapping[str, KernelScratch]) -> OpGraph:
    def replaced(op: Op) -> Op:
        line = lines.get(op.name)
        if line is None or op.role != "compute":
            return op
        size = round(line.base_bytes + line.bytes_per_byte * _tensor_bytes(op, graph))
        return dataclasses.replace(op, scratch=(size,) if size > 0 else (), known=True)

    return dataclasses.replace(graph, ops=tuple(map(replaced, graph.ops)))


def unknown_kinds(program: Program) -> tuple[str, ...]:
    """The kinds of operations whose scratch is unknown, as far as it matters."""
    found = {
        op.kind: None
        for graph in (program.graph, *program.bodies)
        for op in graph.ops
        if not op.known and _tensor_bytes(op, graph) >= _NOTABLE_BYTES
    }
    return tuple(found)


def what_is_unknown(program: Program) -> tuple[str, ...]:
    """The same, in words."""
    kinds = unknown_kinds(program)
    if not kinds:
        return ()
    more = f" and {len(kinds) - _MOST_KINDS} more" if len(kinds) > _MOST_KINDS else ""
    return (f"what kernels of {', '.join(kinds[:_MOST_KINDS])}{more} need while they run",)


def _tensor_bytes(op: Op, graph: OpGraph) -> int:
    return sum(graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs))
