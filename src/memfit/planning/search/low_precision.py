"""The lever that computes in 16 bits: layers but for a few, with casts where they meet others."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from memfit.core.records import Op, OpGraph, Program, Slowdown
from memfit.planning.search.micro_batches import regions_of

_MULTIPLIES = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum", "_FusedMatMul")
_CONVOLVES = ("Conv", "DepthwiseConv", "_FusedConv")
_BYTES_PER_SECOND = 3e10
_SECONDS_PER_CALL = 5e-6
_LEAST_BYTES = 256  # of tensors whose casts are worth counting


def in_low_precision(program: Program, kept: Collection[str], slowdown: Slowdown) -> Program:
    """The same step with the numbers of all layers in 16 bits, but for layers that are kept, by their paths.

    Variables stay as they are: layers read them through a cast. Gradients become wide before the update.
    """
    low = _low(program, kept)
    bodies = list(program.bodies)
    for body in _bodies_of(program, low):
        bodies[body] = _narrowed(bodies[body], slowdown)
    graph = _with_casts(program.graph, low, slowdown)
    return dataclasses.replace(program, graph=graph, bodies=tuple(bodies))


def _low(program: Program, kept: Collection[str]) -> set[int]:
    """The operations that compute in 16 bits; what is in no layer does so if all that it takes is."""
    graph, update = program.graph, regions_of(program).update
    makers, low = graph.makers, set[int]()
    for number, op in enumerate(graph.ops):
        if not op.is_float or number in update or op.role in ("read", "variable", "constant"):
            continue
        if op.layer:
            is_low = op.layer not in kept
        else:
            taken = [makers[tensor] for tensor in op.inputs if tensor in makers]
            computed = [maker for maker in taken if graph.ops[maker].role not in ("constant", "variable")]
            is_low = bool(computed) and all(m in low or not graph.ops[m].is_float for m in computed)
        if is_low:
            low.add(number)
    return low


def _bodies_of(program: Program, low: set[int]) -> set[int]:
    """The graphs that operations in 16 bits run, and those inside them."""
    left = [program.graph.ops[number].body for number in low]
    found = set[int]()
    while left:
        body = left.pop()
        if body is not None and body not in found:
            found.add(body)
            left.extend(op.body for op in program.bodies[body].ops)
    return found


def _narrowed(graph: OpGraph, slowdown: Slowdown) -> OpGraph:
    """A graph whose numbers are all in 16 bits."""
    sizes, ops = list(graph.tensors), list(graph.ops)
    for number, op in enumerate(graph.ops):
        if op.is_float and op.role not in ("read", "variable", "constant"):
            ops[number] = _in_16_bits(op, graph, slowdown)
            for tensor in op.outputs:
                sizes[tensor] //= 2
    return dataclasses.replace(graph, ops=tuple(ops), tensors=tuple(sizes))


def _in_16_bits(op: Op, graph: OpGraph, slowdown: Slowdown) -> Op:
    if op.kind in _MULTIPLIES:  # the kernel works on copies in 32 bits
        scratch = tuple(graph.tensors[tensor] for tensor in (*op.inputs[:2], *op.outputs[:1]))
    elif op.kind.startswith(_CONVOLVES):  # the kernel fills a cache, with twice as many numbers
        scratch = op.scratch
    else:
        scratch = tuple(size // 2 for size in op.scratch)
    return dataclasses.replace(op, scratch=scratch, seconds=op.seconds * _factor(op.kind, slowdown))


def _factor(kind: str, slowdown: Slowdown) -> float:
    if kind in _MULTIPLIES:
        return slowdown.matmul
    return slowdown.convolution if kind.startswith(_CONVOLVES) else slowdown.other


def _with_casts(graph: OpGraph, low: set[int], slowdown: Slowdown) -> OpGraph:
    """Operations in 16 bits, and a cast wherever a tensor goes to one of another precision."""
    sizes = list(graph.tensors)
    for number in low:
        for tensor in graph.ops[number].outputs:
            sizes[tensor] //= 2
    casts = _Casts(graph, low, sizes)
    ops, numbers = list[Op](), dict[int, int]()
    for tensor in graph.inputs:
        ops += casts.after(tensor)
    for number, op in enumerate(graph.ops):
        changed = _in_16_bits(op, graph, slowdown) if number in low else op
        numbers[number] = len(ops)
        ops.append(dataclasses.replace(changed, inputs=casts.inputs_of(number)))
        for tensor in op.outputs:
            ops += casts.after(tensor)
    renumbered = tuple(
        dataclasses.replace(op, after=tuple(numbers[other] for other in op.after)) if op.after else op
        for op in ops
    )
    return dataclasses.replace(graph, ops=renumbered, tensors=tuple(sizes))


class _Casts:
    """Which tensors are needed in another precision than they are made in, and by whom."""

    def __init__(self, graph: OpGraph, low: set[int], sizes: list[int]) -> None:
        self._graph, self._low, self._sizes = graph, low, sizes
        self._makers = graph.makers
        self._cast: dict[int, int] = {}  # tensors, and what they become
        self._takers = dict[int, int]()  # tensors, and the first that needs them cast
        for number, op in enumerate(graph.ops):
            for tensor in op.inputs:
                if self._needs_cast(tensor, number) and tensor not in self._cast:
                    made_low = self._makers.get(tensor) in low
                    self._cast[tensor] = len(sizes)
                    self._takers[tensor] = number
                    sizes.append(sizes[tensor] * 2 if made_low else sizes[tensor] // 2)

    def inputs_of(self, number: int) -> tuple[int, ...]:
        """The input tensors of an operation, cast where they have to be."""
        inputs = self._graph.ops[number].inputs
        return tuple(self._cast[t] if self._needs_cast(t, number) else t for t in inputs)

    def after(self, tensor: int) -> list[Op]:
        """The cast of a tensor, if anybody needs it."""
        if tensor not in self._cast:
            return []
        taker = self._graph.ops[self._takers[tensor]]
        moved = self._sizes[tensor] + self._sizes[self._cast[tensor]]
        return [
            Op(
                "Cast",
                inputs=(tensor,),
                outputs=(self._cast[tensor],),
                seconds=_SECONDS_PER_CALL + moved / _BYTES_PER_SECOND,
                part=taker.part,
                layer=taker.layer,
                is_float=True,
            )
        ]

    def _needs_cast(self, tensor: int, taker: int) -> bool:
        """Whether maker and taker differ in precision; handles, numbers and whole numbers do not matter."""
        maker = self._makers.get(tensor)
        if not self._graph.ops[taker].is_float or self._sizes[tensor] < _LEAST_BYTES:
            return False
        if maker is None:
            return taker in self._low
        return self._graph.ops[maker].is_float and (maker in self._low) != (taker in self._low)
