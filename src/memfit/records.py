"""What the stages hand to each other: frozen dataclasses and one JSON round trip for all of them.

On disk a record is one JSON object with its "schema" and "kind" in front of its fields. A record of a
newer schema is refused, a field that is missing takes its default, an unknown one is an error.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from memfit.errors import InvalidRecord, RecordTooNew
from memfit.units import format_size

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """The round trip: record -> dict -> JSON and back."""

    schema: ClassVar[int] = 1

    @classmethod
    def kind(cls) -> str:
        """The name of this kind of record in JSON."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data, with its schema and kind."""
        return {"schema": self.schema, "kind": self.kind(), **_encode(self)}

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The record from plain data; refuses another kind and a newer schema."""
        if not isinstance(data, dict):
            raise InvalidRecord(cls.kind(), f"expected an object, received {type(data).__name__}")
        schema, kind = data.get("schema"), data.get("kind")
        if kind != cls.kind():
            raise InvalidRecord(cls.kind(), f"received a record of kind {kind!r}")
        if not isinstance(schema, int) or schema < 1:
            raise InvalidRecord(cls.kind(), f"expected a schema number, received {schema!r}")
        if schema > cls.schema:
            raise RecordTooNew(kind, schema=schema, newest=cls.schema)
        fields = {name: value for name, value in data.items() if name not in ("schema", "kind")}
        return typing.cast(Self, _decode(cls, fields, cls.kind()))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record from JSON text."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidRecord(cls.kind(), f"not JSON ({error})") from error
        return cls.from_dict(data)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, number in _NOT_FINITE.items() if str(number) == str(value))
    return value


def _decode(expected: Any, value: Any, where: str) -> Any:
    """`value` as the type `expected`, or an InvalidRecord that says where it is not."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _decode_fields(typing.cast(type[Any], expected), value, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if expected is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        if not isinstance(value, str) or value in _NOT_FINITE:
            return _NOT_FINITE[value] if isinstance(value, str) else float(value)
    elif isinstance(expected, type) and type(value) is expected:
        return value
    expected_name = getattr(expected, "__name__", str(expected)) if origin is None else str(expected)
    raise InvalidRecord(where, f"expected {expected_name}, received {value!r}")


def _decode_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in options:
        return None
    (option,) = (option for option in options if option is not types.NoneType)
    return _decode(option, value, where)


def _decode_fields(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidRecord(where, f"expected an object, received {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - set(fields)):
        raise InvalidRecord(where, f"unknown fields {', '.join(unknown)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidRecord(where, f"missing fields {', '.join(missing)}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


@dataclass(frozen=True)
class DeviceMemory(Record):
    """What the allocator of one device holds now, and the most it has held since the last reset."""

    device: str
    current_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class HostMemory(Record):
    """The machine's RAM and the tightest memory cgroup around this process."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None = None
    cgroup_available_bytes: int | None = None

    @property
    def usable_total_bytes(self) -> int:
        """The most this process could ever have: the smaller of machine and cgroup."""
        return min(self.total_bytes, self.cgroup_limit_bytes or self.total_bytes)

    @property
    def usable_available_bytes(self) -> int:
        """What this process could still take now: the smaller of machine and cgroup."""
        if self.cgroup_available_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.cgroup_available_bytes)


BudgetSource = Literal["given", "limit", "gpu", "cgroup", "machine"]


@dataclass(frozen=True)
class Budget(Record):
    """The bytes that a plan aims at, where they come from, and what the allocator enforces."""

    budget_bytes: int
    source: BudgetSource
    limit_bytes: int | None = None
    reserve_bytes: int = 0


@dataclass(frozen=True)
class OutOfMemory(Record):
    """What an out-of-memory error says of itself, as far as it says it."""

    message: str
    requested_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    allocator: str | None = None
    op: str | None = None

    def describe(self) -> str:
        """The allocation that failed, in a few words."""
        if self.requested_bytes is None:
            return self.message
        shape = "" if self.shape is None else f" ({' × '.join(map(str, self.shape))})"
        return f"allocating {format_size(self.requested_bytes)}{shape}"


@dataclass(frozen=True)
class SurvivedOOM(Record):
    """One out-of-memory error that training survived."""

    step: int
    phase: Literal["gradients", "commit", "evaluation", "prediction"]
    micro_batch_size: int
    next_micro_batch_size: int
    seconds: float
    error: OutOfMemory


@dataclass(frozen=True)
class MicroBatchChange(Record):
    """From this step on, batches were split into micro-batches of this size."""

    step: int
    micro_batch_size: int


@dataclass(frozen=True)
class Run(Record):
    """What happened in one guarded training."""

    budget: Budget
    steps: int = 0
    micro_batches: tuple[MicroBatchChange, ...] = ()
    ooms: tuple[SurvivedOOM, ...] = ()
    peak_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def micro_batch_size(self) -> int | None:
        """The size at the end; None when no step ran."""
        return self.micro_batches[-1].micro_batch_size if self.micro_batches else None


@dataclass(frozen=True)
class Package(Record):
    """A package that memfit works with: what is installed, what is supported, a warning if they differ."""

    name: str
    version: str | None
    supported: str
    warning: str | None = None


@dataclass(frozen=True)
class Doctor(Record):
    """What `memfit doctor` found."""

    memfit_version: str
    packages: tuple[Package, ...]
    devices: tuple[str, ...]
    allocator: str
    host: HostMemory
    process_bytes: int
    budget: Budget
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoRow(Record):
    """One way of training the demo's model."""

    name: Literal["plain", "memfit", "unlimited"]
    oom: bool
    peak_bytes: int
    micro_batch_size: int
    loss: tuple[float, ...]
    seconds: float
    ooms_survived: int = 0
    oom_seconds: float = 0.0
    error: OutOfMemory | None = None


@dataclass(frozen=True)
class Demo(Record):
    """The main job, three ways."""

    budget_bytes: int
    batch_size: int
    rows: tuple[DemoRow, ...]
    epochs: int
    images: int
    device: str
    seconds: float


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


OpRole = Literal[
    "compute",  # makes its outputs in memory of their own
    "alias",  # its outputs are its inputs under other names
    "constant",  # is there from the first step on
    "variable",  # a handle of a variable
    "read",  # its output is what the variable of its first input holds
    "assign",  # the variable of its first input holds its second input from now on
    "update",  # changes the variable of its first input in place
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
    seconds: float = 0.0
    cheap: bool = False  # the executor runs it at once instead of handing it to a worker
    variable: int | None = None
    body: int | None = None  # the graph that it runs
    times: int = 1
    parallel: int = 1  # how many of those may run at a time
    part: Literal["activations", "gradients"] = "activations"  # what its outputs count as
    layer: str = ""


@dataclass(frozen=True)
class OpGraph:
    """Operations in an order in which they could run, and the bytes of all tensors."""

    ops: tuple[Op, ...]
    tensors: tuple[int, ...]
    inputs: tuple[int, ...] = ()  # tensors that come from outside
    outputs: tuple[int, ...] = ()  # tensors that are kept until the end


VariableRole = Literal["weight", "optimizer", "other"]


@dataclass(frozen=True)
class ProgramVariable:
    """A variable of a program."""

    name: str
    bytes: int
    role: VariableRole
    layer: str = ""
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
class Parts:
    """What is in memory at the peak of a step."""

    weights_bytes: int = 0  # and all other variables of the model, and constants
    gradients_bytes: int = 0  # all that the backward pass and the update have computed
    optimizer_bytes: int = 0
    activations_bytes: int = 0  # all that the forward pass has computed
    scratch_bytes: int = 0  # what kernels need while they run
    allocator_bytes: int = 0  # what the allocator hands out beyond what was asked for
    data_bytes: int = 0  # the batch


@dataclass(frozen=True)
class LayerBytes:
    """What a layer holds at the peak of a step."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Estimate(Record):
    """What a step will need, known before it runs."""

    batch_size: int
    method: Literal["graph", "xla"]
    peak_bytes: int  # expected of a warm step, weights and optimizer included, as the allocator counts it
    low_bytes: int  # what a run does not stay under
    safe_bytes: int  # what a run stays under
    parts: Parts
    layers: tuple[LayerBytes, ...]  # the largest first
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Estimates(Record):
    """What a step will need at several batch sizes."""

    estimates: tuple[Estimate, ...]
