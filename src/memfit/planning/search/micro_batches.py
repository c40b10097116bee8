"""A step at any batch size, from two readings of it; and in micro-batches, whose gradients add up.

A step's graph has two regions, told apart by what they read and write: the update, and all before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memfit.core.records import Op, OpGraph, Program
from memfit.core.records.programs import CallSequence

_MOST = 3  # micro-batches that differ: all others need what the second does
_SECONDS_PER_PART = 2e-3  # to slice a batch and to call a graph
_ADDED_BYTES_PER_SECOND = 1e10  # of gradients to those before them
_COPIED_BYTES_PER_SECOND = 3e9  # to the host
_COPIED = ("variable", "constant", "read")  # whoever needs one makes it again


def as_guarded(program: Program, batch_size: int, room_bytes: int | None) -> Program:
    """A step on a whole batch as the guard runs it, from what a step on a part of the batch does.

    A batch that is not split runs at once where `room_bytes` are enough for the old values of all that it
    writes; without a limit to them it does in any case. Otherwise it runs in two phases, as one that is split
    does: all gradients stay until the update.
    """
    guarded = dataclasses.replace(program, is_guarded=True)
    if room_bytes is None:
        return guarded
    if program.batch_size < batch_size or has_two_phases(program, room_bytes):
        return in_micro_batches(guarded, batch_size, room_bytes)
    return guarded


def has_two_phases(program: Program, room_bytes: int) -> bool:
    """Whether a step on a batch that is not split runs in two phases unless old values go to the host.

    A step whose update is not known to be the last thing that it does always runs at once.
    """
    is_much = program.method == "graph" and written_bytes(program) > room_bytes
    return is_much and bool(regions_of(program).update)


def written_bytes(program: Program) -> int:
    """The bytes of all variables that a step changes."""
    return sum(program.variables[number].bytes for number in written_by(program))


def seconds_to_copy(program: Program) -> float:
    """The seconds to copy to the host all variables that a step changes."""
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
    """The seconds of a batch in micro-batches, from the Program of a step on one micro-batch."""
    graph, update = program.graph, regions_of(program).update
    passes = seconds_of_ops(program, (op for number, op in enumerate(graph.ops) if number not in update))
    once = seconds_of_ops(program, (graph.ops[number] for number in update))
    added = sum(graph.tensors[tensor] for tensor in _carried(graph, update)) / _ADDED_BYTES_PER_SECOND
    count = -(-batch_size // program.batch_size)
    share = batch_size / program.batch_size  # the last part may be a smaller one
    return share * passes + count * _SECONDS_PER_PART + (count - 1) * added + once


def _carried(graph: OpGraph, update: Collection[int]) -> tuple[int, ...]:
    """The gradients: the tensors that the update takes from the passes before it."""
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


def seconds_of(program: Program) -> float:
    """The seconds of all operations together: kernels use all cores, so what runs beside does not matter."""
    return seconds_of_ops(program, program.graph.ops)


def seconds_of_ops(program: Program, ops: Iterable[Op]) -> float:
    """The same of some operations."""
    return sum(_seconds(program, op) for op in ops)


def _seconds(program: Program, op: Op) -> float:
    inside = 0.0 if op.body is None else seconds_of_ops(program, program.bodies[op.body].ops)
    return op.seconds + op.times * inside


@dataclass(frozen=True)
class ResizableProgram:
    """The Programs of a step at two batch sizes; in between and beyond, bytes and time grow evenly.

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
        """The Program of the step at another batch size."""
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


_NO_TENSORS = ("read", "constant", "variable")  # what these make is not computed from the batch


@dataclass(frozen=True)
class Regions:
    """Which operations belong to the update, and the gradients that it takes."""

    update: frozenset[int]
    gradients: tuple[int, ...]  # tensors


def regions_of(program: Program) -> Regions:
    """The update is whatever follows from variables of the optimizer."""
    graph = program.graph
    makers = graph.makers
    handles = {
        tensor: op.variable
        for op in graph.ops
        if op.role == "variable" and op.variable is not None
        for tensor in op.outputs
    }
    slots = {number for number, variable in enumerate(program.variables) if variable.role == "optimizer"}
    begins = [n for n, op in enumerate(graph.ops) if _handled(op, handles) & slots]
    update = followers_of(graph, begins)
    gradients = _taken(graph, update, makers)
    # What is computed from a gradient for the update alone, such as its square, belongs to the update.
    while prepared := [
        makers[tensor]
        for tensor in gradients
        if any(given in gradients for given in graph.ops[makers[tensor]].inputs)
        and all(user in update for user in graph.users[tensor])
    ]:
        update.update(prepared)
        gradients = _taken(graph, update, makers)
    return Regions(frozenset(update), tuple(gradients))


def _taken(graph: OpGraph, update: set[int], makers: Mapping[int, int]) -> dict[int, None]:
    """The tensors computed in the backward pass that the update takes."""
    taken = (tensor for number in sorted(update) for tensor in graph.ops[number].inputs)
    return dict.fromkeys(
        tensor
        for tensor in taken
        if tensor in makers
        and makers[tensor] not in update
        and graph.ops[makers[tensor]].part == "gradients"
        and graph.ops[makers[tensor]].role not in _NO_TENSORS
    )


def written_by(program: Program) -> set[int]:
    """The variables that a step changes; those that only loops inside it change are not known."""
    graph = program.graph
    handles = {op.outputs[0]: op.variable for op in graph.ops if op.role == "variable"}
    written = {op.inputs[0] for op in graph.ops if op.role in ("assign", "update") and op.inputs}
    return {number for tensor, number in handles.items() if tensor in written and number is not None}


def followers_of(graph: OpGraph, begins: Iterable[int]) -> set[int]:
    """These operations, and all that take what they make, directly or not."""
    found, left = set[int](), list(begins)
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left.extend(user for tensor in graph.ops[number].outputs for user in graph.users.get(tensor, ()))
    return found


def _handled(op: Op, handles: dict[int, int]) -> set[int]:
    """The variables that an operation reads or writes."""
    return {handles[tensor] for tensor in op.inputs if tensor in handles}
