"""The lever that computes activations again: segments of layers, as `plans.cuts` finds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from memfit.core.records import LayerGraph, Op, OpGraph, Program
from memfit.core.records.programs import Span
from memfit.planning.search.micro_batches import followers_of, regions_of

_SHARED = ("variable", "constant")  # whoever needs one takes the one there is
_NOT_COMPUTED = (*_SHARED, "read")
_EARLY = ("Shape", "ShapeN", "Size", "Rank")  # what these take is not held: they run at once


def rematerialised(program: Program, layers: LayerGraph, spans: Sequence[Span]) -> Program:
    """The same step with segments of calls whose activations the backward pass computes again."""
    graph = program.graph
    places = _calls_around(program, layers, spans) if layers.alone else _calls_of_ops(program, layers)
    _place_sums(graph, places)
    update = regions_of(program).update
    for span in sorted(spans, key=lambda span: (-span[1], span[0])):  # as the way back goes
        graph = _with_segment(graph, places, update, span)
    return dataclasses.replace(program, graph=graph)


def _calls_of_ops(program: Program, layers: LayerGraph) -> list[int | None]:
    """Which call each operation belongs to; what has no layer's name goes with what it takes."""
    numbers = {call.name: number for number, call in enumerate(layers.calls)}
    makers = program.graph.makers
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


def _place_sums(graph: OpGraph, places: list[int | None]) -> None:
    """Sums of gradients have no layer's name: they go with what takes them."""
    users = graph.users
    for number, op in reversed(list(enumerate(graph.ops))):
        if op.kind == "AddN" and op.part == "gradients" and not op.layer:
            after = [places[user] for tensor in op.outputs for user in users.get(tensor, ())]
            places[number] = max((place for place in after if place is not None), default=None)


def _with_segment(graph: OpGraph, places: list[int | None], update: frozenset[int], span: Span) -> OpGraph:
    makers = graph.makers
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
    changed = _Changed(graph)
    copies = changed.copy(sorted(again), after=_arriving(graph, makers, again, backward))
    changed.take(backward, copies)
    _tie(changed, backward, update)
    places.extend([None] * (len(changed.ops) - len(places)))
    return changed.graph


class _Changed:
    """A graph in the making: operations are added behind those that there are."""

    def __init__(self, graph: OpGraph) -> None:
        self.before = graph
        self.ops, self._sizes = list(graph.ops), list(graph.tensors)

    @property
    def graph(self) -> OpGraph:
        """The graph as changed so far."""
        return dataclasses.replace(self.before, ops=tuple(self.ops), tensors=tuple(self._sizes))

    def copy(self, numbers: Sequence[int], *, after: Sequence[int]) -> dict[int, int]:
        """Compute some operations again, once others are done; the new tensors by the old ones."""
        gate = self._add(Op("NoOp", after=tuple(after), cheap=True))
        copies: dict[int, int] = {}
        places: dict[int, int] = {}
        for number in numbers:
            op = self.before.ops[number]
            copies.update((tensor, self._new_like(tensor)) for tensor in op.outputs)
            places[number] = self._add(
                dataclasses.replace(
                    op,
                    inputs=tuple(copies.get(tensor, tensor) for tensor in op.inputs),
                    outputs=tuple(copies[tensor] for tensor in op.outputs),
                    after=(gate, *(places[other] for other in op.after if other in places)),
                )
            )
        return copies

    def hold_back(self, tensor: int, users: Iterable[int], *, until: Sequence[int]) -> None:
        """Let some operations have a tensor only when others are done."""
        held = self._new_like(tensor)
        self._add(
            Op(
                "Identity",
                inputs=(tensor,),
                outputs=(held,),
                after=tuple(until),
                role="alias",
                cheap=True,
                part="gradients",
            )
        )
        self.take(users, {tensor: held})

    def take(self, numbers: Iterable[int], instead: dict[int, int]) -> None:
        """Let operations take other tensors instead of those that they took."""
        for number in numbers:
            op = self.ops[number]
            if not instead.keys().isdisjoint(op.inputs):
                inputs = tuple(instead.get(tensor, tensor) for tensor in op.inputs)
                self.ops[number] = dataclasses.replace(op, inputs=inputs)

    def _add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def _new_like(self, tensor: int) -> int:
        self._sizes.append(self._sizes[tensor])
        return len(self._sizes) - 1


def _arriving(
    graph: OpGraph, makers: Mapping[int, int], again: set[int], backward: Sequence[int]
) -> list[int]:
    """The operations that make the gradients with which the backward pass of a segment begins."""
    made = {tensor for number in again for tensor in graph.ops[number].outputs}
    after = followers_of(graph, [n for n in backward if not made.isdisjoint(graph.ops[n].inputs)])
    taken = {makers[tensor] for n in backward for tensor in graph.ops[n].inputs if tensor in makers}
    return sorted(
        number
        for number in taken
        if graph.ops[number].part == "gradients"
        and number not in after
        and graph.ops[number].role not in _NOT_COMPUTED
    )


def _tie(changed: _Changed, backward: Sequence[int], update: frozenset[int]) -> None:
    """Let gradients go further down when those of the weights are there too, as a segment does that runs."""
    graph = changed.before
    inside, users = set(backward), graph.users
    leaving: dict[int, list[int]] = {}
    ends = set[int]()
    for number in backward:
        if graph.ops[number].role in _NOT_COMPUTED:
            continue
        for tensor in graph.ops[number].outputs:
            outside = [user for user in users.get(tensor, ()) if user not in inside]
            further = [user for user in outside if user not in update and graph.ops[user].kind not in _EARLY]
            ends.update([number] if outside else [])
            leaving.update({tensor: further} if further else {})
    below = followers_of(graph, [user for further in leaving.values() for user in further])
    for tensor, further in leaving.items():
        changed.hold_back(tensor, further, until=sorted(ends - below))


def _needed(
    graph: OpGraph, makers: Mapping[int, int], forward: set[int], backward: Sequence[int]
) -> set[int]:
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
