"""The lever that splits a batch: gradients of micro-batches add up, and one update follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from memfit.plans.regions import makers_of, regions_of
from memfit.plans.times import seconds_of_ops
from memfit.records import Op, OpGraph, Program
from memfit.sequences import CallSequence

_MOST = 3  # micro-batches that are told apart: all others need what the second does
_SECONDS_PER_PART = 2e-3  # to slice a batch and to call a graph
_COPIED = ("variable", "constant", "read")  # whoever needs one makes it again


def in_micro_batches(program: Program, batch_size: int) -> Program:
    """A step on a whole batch, from what a step on one micro-batch does.

    The first micro-batch leaves its gradients, each other one adds its own to them, the update takes them.
    """
    graph = program.graph
    regions = regions_of(program)
    makers = makers_of(graph)
    passes = [number for number in range(len(graph.ops)) if number not in regions.update]
    taken = dict.fromkeys(tensor for number in regions.update for tensor in graph.ops[number].inputs)
    carried = tuple(
        tensor
        for tensor in taken
        if makers.get(tensor) is not None
        and makers[tensor] not in regions.update
        and graph.ops[makers[tensor]].role not in _COPIED
    )
    first = _part_of(graph, passes, graph.inputs, (*carried, *graph.outputs))
    update = _part_of(graph, sorted(regions.update), carried, ())
    count = -(-batch_size // program.batch_size)
    sequence = CallSequence(list(program.bodies))
    batch = sequence.make("Batch", [count * graph.tensors[tensor] for tensor in graph.inputs])
    gradients: tuple[int, ...] = ()
    numbers = [sequence.add(first), sequence.add(_adding(first, len(carried)))]
    for turn in range(min(count, _MOST)):
        part = sequence.make("Part", [graph.tensors[tensor] for tensor in graph.inputs])
        made = sequence.call(numbers[min(turn, 1)], (*part, *gradients))
        gradients = made[: len(carried)]
    sequence.call(sequence.add(update), gradients)
    return dataclasses.replace(
        program, batch_size=batch_size, graph=sequence.graph(batch), bodies=tuple(sequence.bodies)
    )


def seconds_in_micro_batches(program: Program, batch_size: int) -> float:
    """How long a batch takes, from what a step on one micro-batch does."""
    ops, update = program.graph.ops, regions_of(program).update
    passes = seconds_of_ops(program, (op for number, op in enumerate(ops) if number not in update))
    once = seconds_of_ops(program, (ops[number] for number in update))
    return -(-batch_size // program.batch_size) * (passes + _SECONDS_PER_PART) + once


def _adding(first: OpGraph, count: int) -> OpGraph:
    """The same graph, but its first outputs are added to as many further inputs.

    Nothing is added before all gradients are there: until then the micro-batch can be taken back.
    """
    sizes = list(first.tensors)
    ops, outputs, given = list(first.ops), list(first.outputs), []
    makers = makers_of(first)
    complete = len(ops)
    ops.append(Op("NoOp", after=tuple(sorted({makers[tensor] for tensor in outputs[:count]})), cheap=True))
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
                after=(complete,),
                reuses=(0, 1),
                seconds=1e-5,
                part="gradients",
            )
        )
    return OpGraph(tuple(ops), tuple(sizes), (*first.inputs, *given), tuple(outputs))


def _part_of(graph: OpGraph, chosen: Sequence[int], inputs: Sequence[int], outputs: Iterable[int]) -> OpGraph:
    """Some operations of a graph as one of their own, with the variables and constants that they need."""
    makers = makers_of(graph)
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
