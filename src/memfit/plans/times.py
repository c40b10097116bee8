"""How long a program takes, in seconds of one core; only ratios between programs mean something."""

from __future__ import annotations

from collections.abc import Iterable

from memfit.records import Op, Program


def seconds_of(program: Program) -> float:
    """What all operations take together: kernels use all cores, so what runs beside does not matter."""
    return seconds_of_ops(program, program.graph.ops)


def seconds_of_ops(program: Program, ops: Iterable[Op]) -> float:
    """The same of some operations."""
    return sum(_seconds(program, op) for op in ops)


def _seconds(program: Program, op: Op) -> float:
    inside = 0.0 if op.body is None else seconds_of_ops(program, program.bodies[op.body].ops)
    return op.seconds + op.times * inside
