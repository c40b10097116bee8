"""The lever that splits a batch: gradients of micro-batches add up, and one update follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from memfit.plans.regions import regions_of, written_by
from memfit.plans.times import seconds_of_ops
from memfit.records import Op, OpGraph, Program
from memfit.sequences import CallSequence

_MOST = 3  # micro-batches that are told apart: all others need what the second does
_SECONDS_PER_PART = 2e-3  # to slice a batch and to call a graph
_ADDED_BYTES_PER_SECOND = 1e10  # of gradients to those before them
_COPIED_BYTES_PER_SECOND = 3e9  # to the host
_COPIED = ("variable", "constant", "read")  # whoever needs one makes it again


def as_guarded(program: Program, batch_size: int, room_bytes: int) -> Program:
    """A step on a whole batch as the guard runs it, from what a step on a part of the batch does.

    A batch that is not split runs at once where `room_bytes` are enough for the old values of all that it
    writes. Otherwise it runs in two phases, as one that is split does: all gradients stay until the update.
    """
    if program.batch_size < batch_size or has_two_phases(program, room_bytes):
        return in_micro_batches(program, batch_size, room_bytes)
    return program


def has_two_phases(program: Program, room_bytes: int) -> bool:
    """Whether a step on a batch that is not split runs in two phases unless old values go to the host."""
    return program.method == "graph" and written_bytes(program) > room_bytes


def written_bytes(program: Program) -> int:
    """What all variables that a step changes take."""
    return sum(program.variables[number].bytes for number in written_by(program))


def seconds_to_copy(program: Program) -> float:
    """How long it takes to copy all that a step changes to the host."""
    return written_bytes(program) / _COPIED_BYTES_PER_SECOND


def in_micro_batches(program: Program, batch_size: int, room_bytes: int = 0) -> Program:
    """A step on a whole batch, from what a step on one micro-batch does.

    The first micro-batch leaves its gradients, each other one adds its own to them, the update takes them.
    It goes variable by variable, and the old values of as many as take `room_bytes` stay meanwhile.
    """
    graph = program.graph
    update_ops = regions_of(program).update
    passes = [number for number in range(len(graph.ops)) if number not in update_ops]
    carried = _carried(graph, update_ops)
    first = _part_of(graph, passes, graph.inputs, (*carried, *graph.outputs))
    update = _part_of(graph, sorted(update_ops), carried, ())
    count = -(-batch_size // program.batch_size)
    sequence = CallSequence(list(program.bodies))
    batch = sequence.make("Batch", [count * graph.tensors[tensor] for tensor in graph.inputs])
    gradients: tuple[int, ...] = ()
    numbers = [sequence.add(first), sequence.add(_adding(first, len(carried)))]
    for turn in range(min(count, _MOST)):
        part = batch
        if count > 1:
            part = sequence.make("Part", [graph.tensors[tensor] for tensor in graph.inputs])
        made = sequence.call(numbers[min(turn, 1)], (*part, *gradients))
        gradients = made[: len(carried)]
    old = sequence.make("OldValues", _old_values(program, room_bytes))
    sequence.call(sequence.add(update), gradients)
    return dataclasses.replace(
        program,
        batch_size=batch_size,
        graph=sequence.graph((*batch, *old)),
        bodies=tuple(sequence.bodies),
    )


def _old_values(program: Program, room_bytes: int) -> Iterator[int]:
    """The sizes of the first variables that are written, as many as there is room for."""
    filled = 0
    for number in sorted(written_by(program)):
        size = program.variables[number].bytes
        filled += size
        if filled > room_bytes:
            return
        yield size


def seconds_in_micro_batches(program: Program, batch_size: int) -> float:
    """How long a batch takes, from what a step on one micro-batch does."""
    graph, update = program.graph, regions_of(program).update
    passes = seconds_of_ops(program, (op for number, op in enumerate(graph.ops) if number not in update))
    once = seconds_of_ops(program, (graph.ops[number] for number in update))
    added = sum(graph.tensors[tensor] for tensor in _carried(graph, update)) / _ADDED_BYTES_PER_SECOND
    count = -(-batch_size // program.batch_size)
    share = batch_size / program.batch_size  # the last part may be a smaller one
    return share * passes + count * _SECONDS_PER_PART + (count - 1) * added + once


def _carried(graph: OpGraph, update: Collection[int]) -> tuple[int, ...]:
    """What the update takes from the passes before it: the gradients."""
    makers = graph.makers
    taken = dict.fromkeys(tensor for number in update for tensor in graph.ops[number].inputs)
    return tuple(
        tensor
        for tensor in taken
        if makers.get(tensor) is not None
        and makers[tensor] not in update
        and graph.ops[makers[tensor]].role not in _COPIED
    )


def _adding(first: OpGraph, count: int) -> OpGraph:
    """The same graph, but its first outputs are added to as many further inputs, each once it is there."""
    sizes = list(first.tensors)
    ops, outputs, given = list(first.ops), list(first.outputs), []
    for place in range(count):
        gradient = outputs[place]
        before, after = len(sizes), len(sizes) + 1
        sizes += [sizes[gradient]] * 2
        given.append(before)
        outputs[place] = after
        ops.append(
            Op(
                "AddV2",
                inputs=(before, gradient),
                outputs=(after,),
                reuses=(0, 1),
                seconds=1e-5,
                part="gradients",
            )
        )
    return OpGraph(tuple(ops), tuple(sizes), (*first.inputs, *given), tuple(outputs))


def _part_of(graph: OpGraph, chosen: Sequence[int], inputs: Sequence[int], outputs: Iterable[int]) -> OpGraph:
    """Some operations of a graph as one of their own, with the variables and constants that they need."""
    makers = graph.makers
    needed, left = set(chosen), list(chosen)
    while left:
        for tensor in graph.ops[left.pop()].inputs:
            maker = makers.get(tensor)
            if maker is not None and maker not in needed and graph.ops[maker].role in _COPIED:
                needed.add(maker)
                left.append(maker)
    order = sorted(needed)
    places = {number: place for place, number in enumerate(order)}
    tensors: dict[int, int] = {}
    for tensor in inputs:
        tensors.setdefault(tensor, len(tensors))
    for number in order:
        for tensor in (*graph.ops[number].inputs, *graph.ops[number].outputs):
            tensors.setdefault(tensor, len(tensors))
    return OpGraph(
        ops=tuple(
            dataclasses.replace(
                graph.ops[number],
                inputs=tuple(tensors[tensor] for tensor in graph.ops[number].inputs),
                outputs=tuple(tensors[tensor] for tensor in graph.ops[number].outputs),
                after=tuple(places[other] for other in graph.ops[number].after if other in places),
            )
            for number in order
        ),
        tensors=tuple(graph.tensors[tensor] for tensor in tensors),
        inputs=tuple(tensors[tensor] for tensor in inputs),
        outputs=tuple(tensors[tensor] for tensor in outputs if tensor in tensors),
    )
