"""What the stages hand to each other: frozen dataclasses, which `roundtrips.py` takes to JSON and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record
from memfit.units import format_size


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


Lever = Literal["micro_batch", "remat", "precision", "xla"]


@dataclass(frozen=True)
class Cut:
    """A segment of a model that is computed again: calls of a nested model, by position in our own order.

    Of a subclassed model it is a layer alone, by its position among all layers, and start and stop are 0.
    """

    path: tuple[int, ...]  # positions of the nested models that it is in
    start: int
    stop: int


@dataclass(frozen=True)
class Choice(Record):
    """One way to train: what is done to the step, and what that comes to."""

    micro_batch_size: int
    accumulation_steps: int
    remat: tuple[Cut, ...] | None
    precision: str
    jit_compile: bool
    peak_bytes: int
    safe_bytes: int
    relative_time: float  # of a step, against the plain one
    exact: bool  # whether the mathematics stay as they are
    notes: tuple[str, ...] = ()
    float32_layers: tuple[str, ...] = ()  # that the user wants to keep out of a lower precision
    one_phase: bool = False  # gradients are applied as they come; old values wait on the host


@dataclass(frozen=True)
class Measured:
    """What a run of a choice really came to."""

    choice: Choice
    limit_bytes: int | None
    peak_bytes: int | None
    seconds_per_step: float | None
    ooms: int


@dataclass(frozen=True)
class MeasuredRuns(Record):
    """What runs of one model on batches of one size came to on this machine, the newest last."""

    runs: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer keeps besides the weights, which no plan changes."""

    name: str
    bytes: int
    bytes_per_weight: float

    def is_notable(self, peak_bytes: int) -> bool:
        """Whether it is enough of a peak to be worth a word."""
        return self.bytes >= 0.1 * peak_bytes


@dataclass(frozen=True)
class Plan(Record):
    """The fastest way to train within a budget, and others."""

    budget_bytes: int
    batch_size: int
    fits_as_is: bool
    chosen: Choice
    alternatives: tuple[Choice, ...] = ()
    ladder: tuple[Choice, ...] = ()  # what to fall back on, each smaller than the one before
    left_out: tuple[str, ...] = ()
    fingerprint: str = ""  # of the model and the versions that it was made for
    seconds: float = 0.0
    optimizer: OptimizerState | None = None
    measured: tuple[Measured, ...] = ()  # runs that it goes by
    largest_batch: Choice | None = None  # where the batch size was to be found
    allow: tuple[Lever, ...] = ("micro_batch", "remat")

    def stepped_down(self, rungs: int) -> Plan:
        """The same with a choice further down the ladder, at most its last."""
        rungs = min(rungs, len(self.ladder))
        if rungs == 0:
            return self
        chosen, ladder = self.ladder[rungs - 1], self.ladder[rungs:]
        return dataclasses.replace(self, chosen=chosen, ladder=ladder, fits_as_is=False)


@dataclass(frozen=True)
class Advice:
    """Something that would help where nothing fits, and what a step then needs."""

    what: str
    safe_bytes: int
    enough: bool  # for the budget


@dataclass(frozen=True)
class Shortfall(Record):
    """Nothing that is allowed fits a budget: the smallest that was found, and what would help."""

    budget_bytes: int
    batch_size: int
    as_is_bytes: int
    smallest: Choice
    advice: tuple[Advice, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run(Record):
    """What happened in one guarded training."""

    budget: Budget
    steps: int = 0
    micro_batches: tuple[MicroBatchChange, ...] = ()
    ooms: tuple[SurvivedOOM, ...] = ()
    peak_bytes: int | None = None
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    seconds_per_step: float | None = None  # the median of the last ones, without the data's part
    step_peak_bytes: int | None = None  # the peak before anything else than training steps ran

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
    """What a layer holds at the peak of a step; without a name, what a line outside all layers does."""

    name: str
    bytes: int
    line: str = ""  # of the user's code, that most of it comes from


Call = Literal["fit", "evaluate", "predict"]  # of a Keras model
Fit = Literal["for sure", "maybe", "no"]


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
    timeline: tuple[int, ...] = ()  # the most in use in each of equal parts of the step
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    budget_bytes: int | None = None
    fits: Fit | None = None  # whether it runs where no more than the budget is to be had
    probed: bool = False  # whether kernels were run on a few samples to see what they need


@dataclass(frozen=True)
class Estimates(Record):
    """What a step will need at several batch sizes."""

    estimates: tuple[Estimate, ...]


@dataclass(frozen=True)
class Attempt:
    """One start of a supervised script, and how it ended: with a code, by a death, or not yet."""

    code: int | None = None
    cause: Literal["memory", "asked", "unknown"] | None = None
    words: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class SupervisedTraining:
    """One `fit` of a supervised script, as far as it has come."""

    number: int
    steps: int = 0
    epoch: int = 0  # counted from nought
    is_over: bool = False
    loss: float | None = None
    micro_batch_size: int | None = None
    peak_bytes: int | None = None
    ooms: int = 0
    plan: Plan | None = None


@dataclass(frozen=True)
class SupervisedRun(Record):
    """What happened under `memfit run`."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    budget_bytes: int | None = None
    seconds: float = 0.0
    is_over: bool = False
    attempts: tuple[Attempt, ...] = ()
    trainings: tuple[SupervisedTraining, ...] = ()
    checkpoints: int = 0
    checkpoint_seconds: float = 0.0
    process_bytes: int | None = None  # the most that was seen
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.attempts[-1].code if self.attempts else None
