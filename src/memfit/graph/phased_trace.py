"""A step that runs as several graphs, one after the other: micro-batches, then what commits them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, Protocol

from memfit.core.records import OpGraph, Program
from memfit.core.records.programs import CallSequence
from memfit.graph.kernel_probes import Candidates
from memfit.graph.labels import Labels
from memfit.graph.reader import Reader
from memfit.graph.trace import Traced, described_variable

_MOST = 4  # micro-batches that differ: all others need what the second does


class GraphPhases(Protocol):
    """The graphs of a step in micro-batches."""

    @property
    def first(self) -> Any:
        """The graph that runs on the first micro-batch."""
        ...

    @property
    def other(self) -> Any:
        """The graph that runs on every other micro-batch."""
        ...

    @property
    def commits(self) -> list[Any]:
        """The graphs that run after the last micro-batch, one after the other."""
        ...

    @property
    def slices(self) -> list[Any]:
        """Outputs of the first two that the commits take."""
        ...


Prepared = Callable[[], AbstractContextManager[tuple[Labels, GraphPhases]]]


class PhasedTrace:
    """A traced step in micro-batches."""

    def __init__(self, prepared: Prepared, *, left_out: tuple[str, ...] = ()) -> None:
        """`prepared` is a context in which the step can be traced; it gives what was traced there."""
        self._prepared, self._left_out = prepared, left_out

    def at(self, batch_size: int, micro_batch_size: int) -> Program:
        """The Program of the step with a batch of this size in micro-batches of that size."""
        return self._read(batch_size, micro_batch_size)[0]

    def candidates(self, micro_batch_size: int) -> Candidates:
        """The operations of the step that a probe could run with micro-batches of this size."""
        return self._read(2 * micro_batch_size, micro_batch_size, collect=True)[1]

    def _read(
        self, batch_size: int, micro_batch_size: int, *, collect: bool = False
    ) -> tuple[Program, Candidates]:
        labels, phases, parts, commits = self._traced
        count = -(-batch_size // micro_batch_size)
        variables = labels.in_order_of_creation(v for one in (*parts, *commits) for v in one.handles.values())
        reader = Reader(variables, labels, collect=collect)
        sequence = CallSequence(reader.bodies)
        bodies = [one.read(reader, micro_batch_size) for one in parts]
        numbers = [sequence.add(body) for body in bodies]
        batch = sequence.make("Batch", [count * size for size in _sizes(bodies[0], bodies[0].inputs)])
        places = [parts[0].outputs.index(tensor.name) for tensor in phases.slices]
        kept: list[int] = []
        for number in range(min(count, _MOST)):
            which = min(number, 1)
            part = sequence.make("Part", _sizes(bodies[which], bodies[which].inputs))
            outputs = sequence.call(numbers[which], part)
            kept.extend(outputs[place] for place in places)
        rows = [
            count * _rows(bodies[0], place, tensor)
            for place, tensor in zip(places, phases.slices, strict=True)
        ]
        for one in commits:
            body = one.read(reader, rows if one.is_open else [])
            sequence.call(sequence.add(body), sequence.make("Part", _sizes(body, body.inputs), kept))
            kept = []
        program = Program(
            batch_size=batch_size,
            method="graph",
            variables=tuple(described_variable(variable, labels) for variable in variables),
            graph=sequence.graph(batch),
            bodies=tuple(reader.bodies),
            left_out=(*self._left_out, *reader.left_out),
        )
        return program, reader.candidates

    @functools.cached_property
    def _traced(self) -> tuple[Labels, GraphPhases, list[Traced], list[Traced]]:
        with self._prepared() as (labels, phases):
            parts = [Traced(concrete) for concrete in (phases.first, phases.other)]
            return labels, phases, parts, [Traced(concrete) for concrete in phases.commits]


def _sizes(body: OpGraph, tensors: Sequence[int]) -> list[int]:
    return [body.tensors[tensor] for tensor in tensors]


def _rows(body: OpGraph, place: int, tensor: Any) -> int:
    """The rows of an output, from its bytes."""
    bytes_of_row = prod(tensor.shape[1:]) * tensor.dtype.size
    return body.tensors[body.outputs[place]] // int(bytes_of_row)
