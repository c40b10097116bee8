"""The operations of a step and the calls of a model, as plain data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memfit.core.serialization import Record


@dataclass(frozen=True)
class LayerTensor:
    """A tensor that goes from one call of a model to others."""

    bytes: int
    saved: bool  # whether a plain forward pass keeps it for the backward pass


@dataclass(frozen=True)
class LayerCall:
    """One call in a model: the tensors that it takes and makes, by number, and what it costs."""

    name: str
    path: tuple[int, ...]  # its position, after those of the nested models that it is in
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saved_bytes: int  # what a plain forward pass keeps of it for the backward pass
    working_bytes: int  # the most that is alive besides, gradients of weights included
    cost: float  # seconds of its forward pass, roughly
    why_not: str | None = None  # what stands against computing it twice


@dataclass(frozen=True)
class LayerGraph(Record):
    """The calls of a model in order, at one batch size."""

    batch_size: int
    calls: tuple[LayerCall, ...]
    tensors: tuple[LayerTensor, ...]
    outputs: tuple[int, ...]
    alone: bool = False  # whether each call is a segment of its own, since code of the user's is in between

    @property
    def one_call_keeps_most(self) -> bool:
        """Whether a single call keeps most of what a forward pass keeps: blocks inside one layer."""
        kept = [call.saved_bytes for call in self.calls]
        return 2 * max(kept, default=0) > sum(kept)


OpRole = Literal[
    "compute",  # makes its outputs in memory of their own
    "alias",  # its outputs are its inputs under other names
    "constant",  # is there from the first step on
    "variable",  # a handle of a variable
    "read",  # its output is what the variable of its first input holds
    "assign",  # the variable of its first input holds its second input from now on
    "update",  # changes the variables among its inputs in place
    "new_list",  # an empty list of tensors
    "put",  # a list with one more tensor, its last input
    "take",  # a tensor of a list
    "pop",  # a list without its last tensor, and that tensor
    "fill",  # a list of as many new tensors as it says, of as many bytes as its scratch
    "join",  # a list of what all its inputs hold
    "call",  # runs another graph, as often as it says
]


@dataclass(frozen=True)
class Op:
    """One operation: the tensors that it takes and makes, by number, and what it does to memory."""

    kind: str  # TensorFlow's name of it
    name: str = ""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()  # operations that have to be done before
    role: OpRole = "compute"
    reuses: tuple[int, ...] = ()  # positions of inputs whose memory its output can take
    reusing: int = 0  # position of that output
    scratch: tuple[int, ...] = ()  # bytes that it needs while it runs
    rooms: int = 0  # for so many of its first output a guard makes sure that there is room before it runs
    filter_bytes: int = 0  # of weights that it may rearrange, for which that guard makes sure of room, too
    known: bool = True  # whether anybody knows what it needs while it runs
    seconds: float = 0.0
    cheap: bool = False  # the executor runs it at once instead of handing it to a worker
    variable: int | None = None
    body: int | None = None  # the graph that it runs
    times: int = 1
    parallel: int = 1  # how many of those may run at a time
    part: Literal["activations", "gradients", "data"] = "activations"  # what its outputs count as
    is_float: bool = False  # whether its outputs are numbers of 32 bits, which a lower precision halves
    layer: str = ""
    line: str = ""  # of the user's code, that it comes from; only where that takes memory


@dataclass(frozen=True)
class OpGraph:
    """Operations in an order in which they could run, and the bytes of all tensors."""

    ops: tuple[Op, ...]
    tensors: tuple[int, ...]
    inputs: tuple[int, ...] = ()  # tensors that come from outside
    outputs: tuple[int, ...] = ()  # tensors that are kept until the end

    @functools.cached_property
    def makers(self) -> Mapping[int, int]:
        """The operation that makes each tensor."""
        return {tensor: number for number, op in enumerate(self.ops) for tensor in op.outputs}

    @functools.cached_property
    def users(self) -> Mapping[int, Sequence[int]]:
        """The operations that take each tensor."""
        users: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for tensor in op.inputs:
                users.setdefault(tensor, []).append(number)
        return users


VariableRole = Literal["weight", "optimizer", "other"]


@dataclass(frozen=True)
class ProgramVariable:
    """A variable of a program."""

    name: str
    bytes: int
    role: VariableRole
    layer: str = ""
    shape: tuple[int, ...] = ()
    drawn: bool = False  # whether its first value was drawn at random, which leaves gaps in the pool


@dataclass(frozen=True)
class Program(Record):
    """The operations and variables of a step, at one batch size."""

    batch_size: int
    method: Literal["graph", "xla"]
    variables: tuple[ProgramVariable, ...]
    graph: OpGraph
    bodies: tuple[OpGraph, ...] = ()  # of loops, branches and calls
    left_out: tuple[str, ...] = ()  # what is unknown about it
    is_guarded: bool = False  # whether room is made sure of


@dataclass(frozen=True)
class Slowdown(Record):
    """The ratio of operations' time in 16 bits to that in 32; below one where a device has units for it."""

    matmul: float = 1.0
    convolution: float = 1.0
    other: float = 1.0


@dataclass(frozen=True)
class KernelInput:
    """An input of a kernel: a tensor of this shape, with its value where the graph says it."""

    shape: tuple[int, ...]
    dtype: str
    value: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Kernel(Record):
    """An operation alone, as another process can run it."""

    node: str  # its NodeDef, in base64
    inputs: tuple[KernelInput, ...]


@dataclass(frozen=True)
class KernelScratch:
    """The measured scratch of an operation: a base, and so much for each byte of its tensors."""

    name: str
    base_bytes: float
    bytes_per_byte: float = 0.0


@dataclass(frozen=True)
class Probe(Record):
    """The scratch of operations of a program, measured on a few samples."""

    kernels: tuple[KernelScratch, ...]
    left_out: tuple[str, ...] = ()  # what could not be measured, and why


Span = tuple[int, int]


def outermost(spans: Sequence[Span], within: Span) -> list[Span]:
    """The spans strictly inside another one that are in no third."""
    inside = [span for span in spans if span != within and contains(within, span)]
    return [span for span in inside if not any(o != span and contains(o, span) for o in inside)]


def contains(outer: Span, inner: Span) -> bool:
    """Whether a span lies inside another one, or is it."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


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


# What a guard adds to a program, on the device and in the simulator alike.

# Of a loop that begin before the first of them has ended. Each holds gradients of weights and what else it
# has begun, so that with Keras' 32 small micro-batches of an LSTM take up to twice the memory; four turns
# are about as fast as 32. A loop that runs out goes on with all that it has begun, and each operation waits
# for ten seconds.
TURNS_AT_ONCE = 4

# For scratch: a quarter of the output, but not more than so many numbers, and some numbers in any case. The
# most that was seen in 2,100 kernels of eight models were 26 thousand.
_MOST_SCRATCH, _SCRATCH = 1 << 18, 1 << 16
_SMALL = 1 << 14


def pieces_of_room(
    count: Any,
    filter_count: int,
    *,
    outputs: int,
    is_half: bool = False,
    smaller: Callable[[Any, int], Any] = min,
    larger: Callable[[Any, int], Any] = max,
) -> list[Any]:
    """The sizes of the pieces that have to be free at once, in numbers, the small ones first.

    A guard takes them before a kernel that would end the process where it finds no room. `count` is the
    size of one output; for one that is only known when a graph runs, `smaller` and `larger` are operations of
    that graph. Numbers of 16 bits are rearranged, and a filter may be.

    >>> pieces_of_room(1 << 20, 432, outputs=1)
    [65536, 327680, 1048576]
    """
    if isinstance(count, int) and count <= _SMALL:
        return [count + larger(count, filter_count) + _SCRATCH]
    scratch = larger(smaller(count // 4, _MOST_SCRATCH), filter_count) + _SCRATCH
    return [_SCRATCH, scratch + 3 * count if is_half else scratch, *[count] * outputs]
