"""What happened under `memfit run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.records.plans import Plan
from memfit.roundtrips import Record


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
