"""A rule: what it is about, and the function that finds it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import dedent

from memfit.core.records import LintRule, Severity
from memfit.linting.values import Values


@dataclass(frozen=True)
class Hit:
    """A place that a rule has found, and what it is about; not sure: it says 'may'."""

    node: ast.AST
    subject: str
    is_sure: bool = True


@dataclass(frozen=True)
class Rule:
    """A rule: what it is about, what it says of `{subject}`, and the function that finds it."""

    about: LintRule
    message: str
    may_message: str
    check: Callable[[Values], Iterator[Hit]]

    def severity(self, hit: Hit) -> Severity:
        """The severity of a hit; what is not sure is a note."""
        return self.about.severity if hit.is_sure else "note"

    def words(self, hit: Hit) -> str:
        """The text of a hit."""
        text = self.message if hit.is_sure else self.may_message or self.message
        return text.replace("{subject}", hit.subject)


def about(id: str, name: str, severity: Severity, **words: str) -> LintRule:  # noqa: A002
    """The record that describes a rule, with examples as they stand in its file."""
    examples = {key: dedent(words.pop(key)).strip("\n") for key in ("before", "after")}
    return LintRule(id, name, severity, **words, **examples)


def shown(node: ast.AST, limit: int = 40) -> str:
    """An expression as a person would quote it, cut where it is long."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "it"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
