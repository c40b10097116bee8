"""The parts of a step's graph, told apart by what they read and write: the update, and all before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memfit.records import Op, OpGraph, Program

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
    """What the update takes of what the backward pass has computed."""
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
