"""The lever that computes activations again: segments of layers, as `plans.cuts` finds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from memfit.plans.regions import followers_of, makers_of, regions_of
from memfit.records import LayerGraph, Op, OpGraph, Program
from memfit.spans import Span

_SHARED = ("variable", "constant")  # whoever needs one takes the one there is
_EARLY = ("Shape", "ShapeN", "Size", "Rank")  # what these take is not held: they run at once


def rematerialised(program: Program, layers: LayerGraph, spans: Sequence[Span]) -> Program:
    """The same step with segments of calls whose activations the backward pass computes again."""
    graph = program.graph
    places = _calls_around(program, layers, spans) if layers.alone else _calls_of_ops(program, layers)
    update = regions_of(program).update
    for span in spans:
        graph = _with_segment(graph, places, update, span)
    return dataclasses.replace(program, graph=graph)


def _calls_of_ops(program: Program, layers: LayerGraph) -> list[int | None]:
    """Which call each operation belongs to; what has no layer's name goes with what it takes."""
    numbers = {call.name: number for number, call in enumerate(layers.calls)}
    makers = makers_of(program.graph)
    found: list[int | None] = [None] * len(program.graph.ops)
    for number, op in enumerate(program.graph.ops):
        named = [numbers[name] for name in op.layer.split("/") if name in numbers]
        if named:
            found[number] = named[-1]
        elif op.part == "activations":
            before = [found[makers[tensor]] for tensor in op.inputs if tensor in makers]
            found[number] = max((place for place in before if place is not None), default=None)
    return found


def _calls_around(program: Program, layers: LayerGraph, spans: Sequence[Span]) -> list[int | None]:
    """Which layer that is computed again each operation is in, by the names of all layers around it."""
    cut = {layers.calls[start].name: start for start, _ in spans}
    found: list[int | None] = []
    for op in program.graph.ops:
        path = op.layer
        while path and path not in cut:
            path = path.rpartition("/")[0]
        found.append(cut.get(path))
    return found


def _with_segment(graph: OpGraph, places: list[int | None], update: frozenset[int], span: Span) -> OpGraph:
    makers = makers_of(graph)
    inside = [
        number
        for number, place in enumerate(places)
        if place is not None and span[0] <= place < span[1] and number not in update
    ]
    forward = {number for number in inside if graph.ops[number].part == "activations"}
    backward = [
        number
        for number in inside
        if graph.ops[number].part == "gradients" and graph.ops[number].kind not in _EARLY
    ]
    again = _needed(graph, makers, forward, backward)
    if not again:
        return graph
    made = {tensor for number in again for tensor in graph.ops[number].outputs}
    after = followers_of(graph, [n for n in backward if not made.isdisjoint(graph.ops[n].inputs)])
    arrive = sorted(
        {
            makers[tensor]
            for number in backward
            for tensor in graph.ops[number].inputs
            if tensor in makers
            and graph.ops[makers[tensor]].part == "gradients"
            and makers[tensor] not in after
            and graph.ops[makers[tensor]].role not in (*_SHARED, "read")
        }
    )
    sizes, ops = list(graph.tensors), list(graph.ops)
    gate = len(ops)
    ops.append(Op("NoOp", after=tuple(arrive), cheap=True))
    copies: dict[int, int] = {}  # tensors
    numbers: dict[int, int] = {}  # operations
    for number in sorted(again):
        op = graph.ops[number]
        for tensor in op.outputs:
            copies[tensor] = len(sizes)
            sizes.append(graph.tensors[tensor])
        numbers[number] = len(ops)
        ops.append(
            dataclasses.replace(
                op,
                inputs=tuple(copies.get(tensor, tensor) for tensor in op.inputs),
                outputs=tuple(copies[tensor] for tensor in op.outputs),
                after=(gate, *(numbers[other] for other in op.after if other in numbers)),
            )
        )
    places.extend([None] * (len(ops) - len(places)))
    for number in backward:
        op = ops[number]
        ops[number] = dataclasses.replace(op, inputs=tuple(copies.get(t, t) for t in op.inputs))
    return dataclasses.replace(graph, ops=tuple(ops), tensors=tuple(sizes))


def _needed(graph: OpGraph, makers: dict[int, int], forward: set[int], backward: Sequence[int]) -> set[int]:
    """The operations of a segment that the backward pass needs something of, directly or not."""
    found = set[int]()
    left = [tensor for number in backward for tensor in graph.ops[number].inputs]
    while left:
        maker = makers.get(left.pop())
        if maker is None or maker not in forward or maker in found:
            continue
        if graph.ops[maker].role not in (*_SHARED, "assign", "update"):
            found.add(maker)
            left.extend(graph.ops[maker].inputs)
    return found
