"""Paths -> Lint: every rule on every file; files that cannot be read are reported, and the others go on."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memfit.core.errors import UnknownRule
from memfit.core.records import SEVERITIES, Lint, LintFinding, LintRule, Severity, UnreadSource
from memfit.linting.parsed_module import Module
from memfit.linting.rule import Hit, Rule
from memfit.linting.rules import custom_loops, kept_tensors, layers, made_in_loops, pipelines, whole_arrays
from memfit.linting.source_files import STANDARD_INPUT, SourceFile, find_files, read_source, source_of
from memfit.linting.values import Values


@dataclass(frozen=True)
class SelectedRules:
    """Which rules are wanted, and from which severity on."""

    rules: tuple[Rule, ...]
    severities: tuple[Severity, ...] = SEVERITIES


def selected_rules(
    select: Collection[str] = (), ignore: Collection[str] = (), severity: Severity = "note"
) -> SelectedRules:
    """The rules with these ids, or all, but for some."""
    for name in (*select, *ignore):
        explain(name)
    chosen = {name.upper() for name in select or RULES} - {name.upper() for name in ignore}
    rules = tuple(rule for name, rule in RULES.items() if name in chosen)
    return SelectedRules(rules, SEVERITIES[SEVERITIES.index(severity) :])


def explain(name: str) -> LintRule:
    """The record that describes a rule."""
    if name.upper() not in RULES:
        raise UnknownRule(name, known=tuple(RULES))
    return RULES[name.upper()].about


def lint(
    paths: Iterable[str],
    rules: SelectedRules | None = None,
    *,
    standard_input: Callable[[], bytes] | None = None,
    on_file: Callable[[str], None] = lambda path: None,
) -> Lint:
    """Look through files, folders and notebooks; `-` is what `standard_input` gives."""
    rules, given = rules or selected_rules(), list(paths)
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
) -> Iterator[tuple[SourceFile | None, list[UnreadSource]]]:
    for found in list(find_files(path for path in paths if path != "-")):
        if isinstance(found, Path):
            on_file(str(found))
            yield read_source(found)
        else:
            yield None, [found]
    if "-" in paths and standard_input is not None:
        yield source_of(STANDARD_INPUT, standard_input())


def lint_source(source: SourceFile, rules: SelectedRules) -> list[LintFinding]:
    """The findings of some rules in one file, from top to bottom."""
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


def _finding(source: SourceFile, lines: list[str], rule: Rule, hit: Hit) -> LintFinding:
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
    """The first and last line and column of a node; of a handler, its own line, of a chain, its last link."""
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


_FAMILIES = (whole_arrays, pipelines, made_in_loops, kept_tensors, layers, custom_loops)
RULES: dict[str, Rule] = {
    rule.about.id: rule
    for rule in sorted(
        (rule for family in _FAMILIES for rule in family.RULES), key=lambda rule: rule.about.id
    )
}

_COMMENT = re.compile(r"#\s*memfit:\s*ignore(?P<file>-file)?(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$|[.,;:])")
_MARK = "memfit:"


class Ignores:
    """Which rules are not wanted on which lines."""

    def __init__(self, text: str) -> None:
        self.is_everything = False
        self._lines: dict[int, set[str] | None] = {}  # None stands for all rules
        for line, comment in _comments(text) if _MARK in text else ():
            for found in _COMMENT.finditer(comment):
                self._add(line, found)

    def _add(self, line: int, found: re.Match[str]) -> None:
        rules = {rule.strip().upper() for rule in (found["rules"] or "").split(",") if rule.strip()}
        if found["file"]:
            self.is_everything = True
        elif found["rules"] is None:
            self._lines[line] = None
        elif (others := self._lines.get(line, set())) is not None:
            self._lines[line] = others | rules

    def covers(self, rule: str, lines: Iterable[int]) -> bool:
        """Whether a rule is not wanted on one of these lines."""
        marked = (self._lines[line] for line in lines if line in self._lines)
        return self.is_everything or any(rules is None or rule in rules for rules in marked)


def _comments(text: str) -> list[tuple[int, str]]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, RecursionError, ValueError):
        return [(number, line) for number, line in enumerate(text.split("\n"), 1) if _MARK in line]
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
