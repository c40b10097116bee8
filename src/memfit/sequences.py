"""A graph that runs others one after the other, as a step in micro-batches does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from memfit.records import Op, OpGraph


class CallSequence:
    """A graph of calls in the making, each after the one before."""

    def __init__(self, bodies: list[OpGraph]) -> None:
        """`bodies` are the graphs that a program has; those that are called join them."""
        self.bodies = bodies
        self._ops: list[Op] = []
        self._tensors: list[int] = []

    def add(self, body: OpGraph) -> int:
        """Take a graph that can be called; its number."""
        self.bodies.append(body)
        return len(self.bodies) - 1

    def make(self, kind: str, sizes: Iterable[int], taken: Sequence[int] = ()) -> tuple[int, ...]:
        """Tensors of these sizes, made by one operation of what is taken."""
        made = self._new(sizes)
        self._append(Op(kind, inputs=tuple(taken), outputs=made, part="data", seconds=1e-6))
        return made

    def call(self, number: int, given: Sequence[int]) -> tuple[int, ...]:
        """Run a graph; its outputs."""
        body = self.bodies[number]
        made = self._new(body.tensors[tensor] for tensor in body.outputs)
        kind = "StatefulPartitionedCall"
        self._append(Op(kind, inputs=tuple(given), outputs=made, role="call", body=number, cheap=True))
        return made

    def graph(self, kept: Sequence[int]) -> OpGraph:
        """All of it; some tensors are kept until the end."""
        self._append(Op("NoOp", inputs=tuple(kept), cheap=True))
        return OpGraph(tuple(self._ops), tuple(self._tensors))

    def _new(self, sizes: Iterable[int]) -> tuple[int, ...]:
        begin = len(self._tensors)
        self._tensors.extend(sizes)
        return tuple(range(begin, len(self._tensors)))

    def _append(self, op: Op) -> None:
        after = (len(self._ops) - 1,) if self._ops else ()
        self._ops.append(dataclasses.replace(op, after=after))
