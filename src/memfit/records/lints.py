"""What will eat memory, found in source code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record

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
        """Where docs/lint.md speaks of it."""
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
    """What will eat memory in some files."""

    findings: tuple[LintFinding, ...]  # by path and place
    rules: tuple[LintRule, ...]  # that found something
    files: int  # looked at
    unread: tuple[UnreadSource, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything was looked at and nothing found."""
        return not self.findings and not self.unread
