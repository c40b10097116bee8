"""Paths -> Lint: every rule on every file; what cannot be read is said, and the others go on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memfit.diagnoses.lints.catalogue import RULES
from memfit.diagnoses.lints.ignores import Ignores
from memfit.diagnoses.lints.modules import Module
from memfit.diagnoses.lints.rule import Hit, Rule
from memfit.diagnoses.lints.sources import STANDARD_INPUT, Source, find_files, read_source, source_of
from memfit.diagnoses.lints.values import Values
from memfit.errors import UnknownRule
from memfit.records import SEVERITIES, Lint, LintFinding, LintRule, Severity, UnreadSource


@dataclass(frozen=True)
class Wanted:
    """Which rules are wanted, and from which severity on."""

    rules: tuple[Rule, ...]
    severities: tuple[Severity, ...] = SEVERITIES


def wanted(select: Collection[str] = (), ignore: Collection[str] = (), severity: Severity = "note") -> Wanted:
    """The rules with these ids, or all, but for some."""
    for name in (*select, *ignore):
        explain(name)
    chosen = {name.upper() for name in select or RULES} - {name.upper() for name in ignore}
    rules = tuple(rule for name, rule in RULES.items() if name in chosen)
    return Wanted(rules, SEVERITIES[SEVERITIES.index(severity) :])


def explain(name: str) -> LintRule:
    """What a rule is about."""
    if name.upper() not in RULES:
        raise UnknownRule(name, known=tuple(RULES))
    return RULES[name.upper()].about


def lint(
    paths: Iterable[str],
    rules: Wanted | None = None,
    *,
    standard_input: Callable[[], bytes] | None = None,
    on_file: Callable[[str], None] = lambda path: None,
) -> Lint:
    """Look through files, folders and notebooks; `-` is what `standard_input` gives."""
    rules, given = rules or wanted(), list(paths)
    findings: list[LintFinding] = []
    unread: list[UnreadSource] = []
    files = 0
    for source, problems in _sources(given, standard_input, on_file):
        unread += problems
        if source is not None:
            files += 1
            try:
                findings += lint_source(source, rules)
            except RecursionError:
                unread.append(UnreadSource(source.path, "nested too deeply to be looked at"))
    found = {finding.rule for finding in findings}
    about = tuple(rule.about for name, rule in RULES.items() if name in found)
    return Lint(tuple(findings), about, files, tuple(unread))


def _sources(
    paths: list[str], standard_input: Callable[[], bytes] | None, on_file: Callable[[str], None]
) -> Iterator[tuple[Source | None, list[UnreadSource]]]:
    for found in list(find_files(path for path in paths if path != "-")):
        if isinstance(found, Path):
            on_file(str(found))
            yield read_source(found)
        else:
            yield None, [found]
    if "-" in paths and standard_input is not None:
        yield source_of(STANDARD_INPUT, standard_input())


def lint_source(source: Source, rules: Wanted) -> list[LintFinding]:
    """What some rules find in one file, from top to bottom."""
    ignores = Ignores(source.text)
    if ignores.is_everything:
        return []
    module = Module(source.tree)
    if module.imports.is_of_another_framework:
        return []
    values, lines = Values(module), source.text.split("\n")
    found: dict[tuple[int, int, str], LintFinding] = {}
    for rule in rules.rules:
        for hit in rule.check(values):
            if rule.severity(hit) in rules.severities and not ignores.covers(
                rule.about.id, _covered(module, hit)
            ):
                finding = _finding(source, lines, rule, hit)
                found.setdefault((_extent(hit.node)[0], finding.column, finding.rule), finding)
    return [found[place] for place in sorted(found)]


def _covered(module: Module, hit: Hit) -> set[int]:
    """The lines on which a comment covers a hit: its own, and the first and last of a simple statement."""
    statement = hit.node if isinstance(hit.node, ast.ExceptHandler) else module.statement(hit.node)
    lines = {_extent(hit.node)[0], statement.lineno}
    is_compound = hasattr(statement, "body")
    return lines if is_compound else lines | {statement.end_lineno or statement.lineno}


def _finding(source: Source, lines: list[str], rule: Rule, hit: Hit) -> LintFinding:
    first, start, last, end = _extent(hit.node)
    text = lines[first - 1] if first <= len(lines) else ""
    end_text = lines[last - 1] if last <= len(lines) else ""
    cell, line = source.place(first)
    return LintFinding(
        path=source.path,
        line=line,
        column=_characters(text, start) + 1,
        end_line=source.place(last)[1],
        end_column=_characters(end_text, end) + 1,
        rule=rule.about.id,
        severity=rule.severity(hit),
        message=rule.words(hit),
        fix=rule.about.fix,
        source=text.rstrip()[:_LONGEST_LINE],
        cell=cell,
    )


_LONGEST_LINE = 300  # of source that is quoted


def _extent(node: ast.AST) -> tuple[int, int, int, int]:
    """Where a node begins and ends; of a handler, only its own line, and of a chain, its last link."""
    first, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and not isinstance(function.value, ast.Name | ast.Attribute):
        first = function.end_lineno or first
        start = (function.end_col_offset or start) - len(function.attr.encode())
    kind = getattr(node, "type", None) if isinstance(node, ast.ExceptHandler) else node
    last = getattr(kind, "end_lineno", None) or first
    end = getattr(kind, "end_col_offset", None) or start + 1
    return first, start, last, end


def _characters(line: str, column: int) -> int:
    """Python counts columns in bytes of UTF-8."""
    return len(line.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
