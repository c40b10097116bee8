"""What a step does, as plain data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record


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
    """What a step does, at one batch size."""

    batch_size: int
    method: Literal["graph", "xla"]
    variables: tuple[ProgramVariable, ...]
    graph: OpGraph
    bodies: tuple[OpGraph, ...] = ()  # of loops, branches and calls
    left_out: tuple[str, ...] = ()  # what nobody knows about it


@dataclass(frozen=True)
class Slowdown(Record):
    """How much longer operations take in 16 bits than in 32; below one where a device has units for it."""

    matmul: float = 1.0
    convolution: float = 1.0
    other: float = 1.0


@dataclass(frozen=True)
class KernelInput:
    """What a kernel takes: a tensor of this shape, with its value where the graph says it."""

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
    """What an operation was seen to need while it runs: so much, and so much for each byte of its tensors."""

    name: str
    base_bytes: float
    bytes_per_byte: float = 0.0


@dataclass(frozen=True)
class Probe(Record):
    """What operations of a program need while they run, measured on a few samples."""

    kernels: tuple[KernelScratch, ...]
    left_out: tuple[str, ...] = ()  # what could not be measured, and why
