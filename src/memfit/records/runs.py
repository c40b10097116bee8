"""What happened in guarded trainings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.records.machines import Budget
from memfit.records.plans import Plan
from memfit.roundtrips import Record
from memfit.units import format_size


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
