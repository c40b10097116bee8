"""The records of guarded trainings, of the demo and of `memfit run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.core.records.machines import Budget
from memfit.core.records.plans import Plan
from memfit.core.serialization import Record
from memfit.core.units import format_size


@dataclass(frozen=True)
class OutOfMemory(Record):
    """The facts of an out-of-memory error, as far as its message has them."""

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
    """The record of one guarded training."""

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
    """The record of one `memfit run`, with all its attempts and trainings."""

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
        """The exit code of the last attempt; None while it runs."""
        return self.attempts[-1].code if self.attempts else None
