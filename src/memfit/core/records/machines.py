"""The records of the machine, its memory and its packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.core.serialization import Record


@dataclass(frozen=True)
class DeviceMemory(Record):
    """The bytes that the allocator of one device holds now, and the most it has held since the last reset."""

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
        """The bytes that this process could still take now: the smaller of machine and cgroup."""
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
class Package(Record):
    """A package that memfit works with: what is installed, what is supported, a warning if they differ."""

    name: str
    version: str | None
    supported: str
    warning: str | None = None


@dataclass(frozen=True)
class Doctor(Record):
    """The findings of `memfit doctor`."""

    memfit_version: str
    packages: tuple[Package, ...]
    devices: tuple[str, ...]
    allocator: str
    host: HostMemory
    process_bytes: int
    budget: Budget
    warnings: tuple[str, ...] = ()
    backend: str = "tensorflow"  # of Keras
