"""Program + Probe -> Program: what kernels need while they run, as it was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from memfit.records import KernelScratch, Op, OpGraph, Probe, Program

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
    """The kinds of operations of which nobody knows what they need while they run, as far as it matters."""
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
