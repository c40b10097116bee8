"""A program at any batch size, from the same program at two."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.records import Op, OpGraph, Program


@dataclass(frozen=True)
class Sizes:
    """What a step does at two batch sizes; in between and beyond, bytes and time grow evenly.

    Tensors do so exactly, since each dimension is the batch or is not; for the scratch of kernels it is a
    guess.
    """

    smaller: Program
    larger: Program

    @property
    def are_alike(self) -> bool:
        """Whether both are the same graph but for its sizes; traces that were made for a size may not be."""
        graphs = [(one.graph, *one.bodies) for one in (self.smaller, self.larger)]
        kinds = [
            [(op.kind, op.inputs, op.outputs) for graph in every for op in graph.ops] for every in graphs
        ]
        return len(graphs[0]) == len(graphs[1]) and kinds[0] == kinds[1]

    def at(self, batch_size: int) -> Program:
        """What the step does at another size."""
        for known in (self.smaller, self.larger):
            if known.batch_size == batch_size:
                return known
        share = (batch_size - self.smaller.batch_size) / (self.larger.batch_size - self.smaller.batch_size)
        pairs = zip(self.smaller.bodies, self.larger.bodies, strict=True)
        return dataclasses.replace(
            self.larger,
            batch_size=batch_size,
            graph=_between(self.smaller.graph, self.larger.graph, share),
            bodies=tuple(_between(small, large, share) for small, large in pairs),
        )


def _between(smaller: OpGraph, larger: OpGraph, share: float) -> OpGraph:
    pairs = zip(smaller.ops, larger.ops, strict=True)
    return dataclasses.replace(
        larger,
        ops=tuple(_op_between(small, large, share) for small, large in pairs),
        tensors=_bytes_between(smaller.tensors, larger.tensors, share),
    )


def _op_between(smaller: Op, larger: Op, share: float) -> Op:
    if smaller.seconds == larger.seconds and smaller.scratch == larger.scratch:
        return larger
    alike = len(smaller.scratch) == len(larger.scratch)
    return dataclasses.replace(
        larger,
        seconds=max(0.0, smaller.seconds + share * (larger.seconds - smaller.seconds)),
        scratch=_bytes_between(smaller.scratch, larger.scratch, share) if alike else larger.scratch,
    )


def _bytes_between(smaller: Sequence[int], larger: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(
        max(0, round(small + share * (large - small))) for small, large in zip(smaller, larger, strict=True)
    )
