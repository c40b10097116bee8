"""Why memory ran out, as far as a log or an error says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.records.runs import OutOfMemory
from memfit.roundtrips import Record

Cause = Literal[
    "activations",  # the batch or its activations are too large
    "weights",  # weights, gradients and optimizer
    "data_on_device",  # a data set or a constant
    "fragmentation",  # enough is free, but not in one piece
    "device_taken",  # by another process, a second framework, or before training began
    "host_memory",
    "leak",
    "one_replica",
    "not_an_oom",
    "unknown",
]


@dataclass(frozen=True)
class Evidence:
    """A line that speaks for a cause, by its number in the log."""

    line: int
    text: str


@dataclass(frozen=True)
class Remedy:
    """Something to do, what it saves where that can be known, and a line to paste."""

    what: str
    saves_bytes: int | None = None
    paste: str | None = None


@dataclass(frozen=True)
class Diagnosis(Record):
    """Why memory ran out: a cause, what speaks for it, and what to do first."""

    cause: Cause
    also: tuple[Cause, ...]
    summary: str
    evidence: tuple[Evidence, ...] = ()
    error: OutOfMemory | None = None
    source: str | None = None  # the user's own line: train.py:12
    advice: tuple[Remedy, ...] = ()
    left_out: tuple[str, ...] = ()
