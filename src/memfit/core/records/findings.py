"""Why memory ran out, as far as a log or an error says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.core.records.runs import OutOfMemory
from memfit.core.serialization import Record
from memfit.core.units import format_size

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


Severity = Literal["error", "warning", "note"]  # the words of SARIF
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")  # the worst last


@dataclass(frozen=True)
class LintRule(Record):
    """A pattern that eats memory, why it does, and what to write instead."""

    id: str
    name: str
    severity: Severity
    summary: str
    reason: str
    fix: str
    before: str
    after: str

    @property
    def anchor(self) -> str:
        """The anchor of its section in docs/lint.md."""
        return f"{self.id}-{self.name}".lower()


@dataclass(frozen=True)
class LintFinding:
    """One place in one file that a rule has something to say about."""

    path: str
    line: int  # counted from 1; in a notebook, within its cell
    column: int  # counted from 1, in characters
    end_line: int
    end_column: int  # of the first character behind it
    rule: str
    severity: Severity
    message: str
    fix: str
    source: str = ""  # the line itself
    cell: int | None = None  # of a notebook, counted from 1


@dataclass(frozen=True)
class UnreadSource:
    """A file, or a part of it, that could not be looked at."""

    path: str
    reason: str


@dataclass(frozen=True)
class Lint(Record):
    """The lint findings in some files: code that will eat memory."""

    findings: tuple[LintFinding, ...]  # by path and place
    rules: tuple[LintRule, ...]  # that found something
    files: int  # looked at
    unread: tuple[UnreadSource, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything was looked at and nothing found."""
        return not self.findings and not self.unread


Leaked = Literal["models", "retracing", "python_functions", "tensors", "tapes", "arrays"]


@dataclass(frozen=True)
class Reading(Record):
    """The memory and the counts of objects at one moment of a watch."""

    seconds: float  # since the watch began
    step: int  # steps that were marked so far
    process_bytes: int
    device_bytes: int | None = None  # None where the allocator keeps no statistics
    tensors: int | None = None  # eager ones, at the last look at all objects; None before the first
    tensor_bytes: int | None = None
    graphs: int = 0  # FuncGraphs that are alive
    traces: int = 0  # of tf.functions, since the watch began
    closures: int = 0  # Python functions that TensorFlow holds
    gradients: int = 0  # entries in TensorFlow's registry of gradients


@dataclass(frozen=True)
class Leak(Record):
    """Something that grows, or is kept for good, and the user's line that makes it."""

    leaked: Leaked
    source: str  # file:line, empty where nothing of the user's is known
    count: int
    bytes_each: int | None  # for each iteration; None where it cannot be told
    evidence: tuple[str, ...]
    advice: str
    paste: str  # a line that mends it
    also: tuple[str, ...] = ()  # further lines that take part

    def describe(self) -> str:
        """The leak in a sentence."""
        size = "" if not self.bytes_each else f", {format_size(self.bytes_each)} each"
        what = _NAMES[self.leaked] + "s" * (self.count != 1)
        return f"{self.source or 'an unknown line'} leaks {self.count} {what}{size}"


_NAMES: dict[Leaked, str] = {
    "models": "model",
    "retracing": "trace",
    "python_functions": "Python function",
    "tensors": "tensor",
    "tapes": "tape",
    "arrays": "array",
}
