"""Lint -> text: findings by file with their lines, each rule's way out once, and as GitHub reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import PurePath
from textwrap import fill
from typing import Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memfit.core.records import Lint, LintFinding, LintRule, UnreadSource
from memfit.core.version import __version__

_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}
_LONGEST = 76
_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def show_lint(lint: Lint) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    parts: list[RenderableType] = []
    for path, found in groupby(lint.findings, key=lambda finding: finding.path):
        parts += [Text(_printable(path), style="bold"), *(_finding(one) for one in found), Text()]
    for one in lint.unread:
        parts.append(Text(_printable(f"{one.path}: not looked at: {one.reason}"), style="yellow"))
    if lint.unread:
        parts.append(Text())
    for rule in lint.rules:
        parts += [_way_out(rule), Text()]
    return Group(*parts, Text(headline(lint), style="bold"))


def _finding(finding: LintFinding) -> RenderableType:
    head = Text(f"  {where(finding)} ")
    head.append(f"{finding.rule} {finding.severity}", style=_STYLES[finding.severity])
    rest: list[RenderableType] = [Padding(Text(f"{finding.message}."), (0, 0, 0, 4))]
    return Group(head, *(Padding(line, (0, 0, 0, 6)) for line in _quoted(finding)), *rest)


def where(finding: LintFinding) -> str:
    """Line and column, and in a notebook the cell."""
    place = f"{finding.line}:{finding.column}"
    return place if finding.cell is None else f"cell {finding.cell}, {place}"


def _quoted(finding: LintFinding) -> list[Text]:
    """The line, cut where it is long, and a caret below where it begins."""
    source = finding.source.expandtabs(1)
    text = source.lstrip()
    cut = len(source) - len(text)
    start = max(finding.column - 1 - cut, 0)
    end = finding.end_column - 1 - cut if finding.end_line == finding.line else len(text)
    shift = max(0, min(start - 8, len(text) - _LONGEST + 10)) if len(text) > _LONGEST - 6 else 0
    visible = _printable(text[shift : shift + _LONGEST - 6])
    start, end = start - shift, min(end - shift, len(visible))
    if not visible or start >= len(visible):
        return [Text(visible, no_wrap=True)] if visible else []
    marks = " " * start + "^" * max(1, end - start)
    return [Text(visible, no_wrap=True), Text(marks, style="bold", no_wrap=True)]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def _way_out(rule: LintRule) -> RenderableType:
    head = Text()
    head.append(f"{rule.id} {rule.name}", style="bold")
    head.append(f": {rule.fix}")
    lines = [Text(line, no_wrap=True, overflow="ignore") for line in rule.after.splitlines()]
    return Group(head, *(Padding(line, (0, 0, 0, 4)) for line in lines))


def headline(lint: Lint) -> str:
    """The numbers of findings and of files, in a sentence."""
    looked = _counted(lint.files, "file")
    if not lint.files and not lint.unread:
        return "No Python files or notebooks there."
    if lint.is_clean:
        return f"Nothing found in {looked}."
    counts = [
        _counted(number, severity)
        for severity in ("error", "warning", "note")
        if (number := sum(finding.severity == severity for finding in lint.findings))
    ]
    words = f"{', '.join(counts) or 'Nothing found'} in {looked}"
    more = f"; {_counted(len(lint.unread), 'thing')} could not be looked at" if lint.unread else ""
    hint = f" memfit lint --explain {lint.rules[0].id} says why." if lint.rules else ""
    return f"{words}{more}.{hint}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_rule(rule: LintRule) -> RenderableType:
    """The section of docs/lint.md about a rule."""
    return Text(markdown(rule), overflow="ignore")


def markdown(rule: LintRule, width: int | None = None) -> str:
    """The section of docs/lint.md about a rule, with lines of some width."""
    examples = [
        f"{title}:\n\n" + "\n".join(f"    {line}".rstrip() for line in code.splitlines())
        for title, code in (("Before", rule.before), ("After", rule.after))
    ]
    head = f"### {rule.id} {rule.name}\n\n{rule.summary} ({rule.severity})."
    reason, fix = (fill(text, width) if width else text for text in (rule.reason, f"Fix: {rule.fix}"))
    return "\n\n".join([head, reason, *examples, fix]) + "\n"


def github(lint: Lint) -> str:
    """Workflow commands, which GitHub shows beside the lines."""
    lines = [_command(finding) for finding in lint.findings]
    lines += [
        f"::error file={_property(one.path)}::{_data(f'not looked at: {one.reason}')}" for one in lint.unread
    ]
    return "\n".join(lines)


def _command(finding: LintFinding) -> str:
    cell = "" if finding.cell is None else f" (cell {finding.cell})"
    places = {"file": finding.path}
    if finding.cell is None:  # GitHub counts the lines of the JSON
        places |= {"line": str(finding.line), "col": str(finding.column)}
        places |= {"endLine": str(finding.end_line)}
        if finding.end_line == finding.line:
            places |= {"endColumn": str(finding.end_column)}
    places |= {"title": f"memfit {finding.rule}"}
    properties = ",".join(f"{key}={_property(value)}" for key, value in places.items())
    text = f"{finding.message}{cell and f'; in {cell.strip()[1:-1]}, line {finding.line}'}. {finding.fix}"
    return f"::{_GITHUB[finding.severity]} {properties}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(lint: Lint, rules: Iterable[LintRule]) -> str:
    """One run of SARIF with the findings, and all rules that were asked for."""
    listed = list(rules)
    places = {rule.id: number for number, rule in enumerate(listed)}
    driver = {"name": "memfit", "version": __version__, "rules": [_rule(rule) for rule in listed]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not lint.unread,
                "toolExecutionNotifications": [_notification(one) for one in lint.unread],
            }
        ],
        "results": [_result(finding, places) for finding in lint.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: LintRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.reason},
        "help": {"text": rule.fix, "markdown": markdown(rule)},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: LintFinding, places: dict[str, int]) -> dict[str, Any]:
    cell = "" if finding.cell is None else f"cell {finding.cell}, line {finding.line}: "
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{cell}{finding.message}. {finding.fix}"},
        "locations": [{"physicalLocation": _location(finding)}],
    }
    if finding.rule in places:
        result["ruleIndex"] = places[finding.rule]
    return result


def _location(finding: LintFinding) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    if finding.cell is None:
        location["region"] = {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endLine": finding.end_line,
            "endColumn": max(finding.end_column, finding.column + 1)
            if finding.end_line == finding.line
            else finding.end_column,
            "snippet": {"text": finding.source},
        }
    else:  # lines of a notebook are those of its JSON, so the message says the cell
        location["region"] = {"startLine": 1}
    return location


def _notification(one: UnreadSource) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(one.path)}}}
    text = f"{one.path}: not looked at: {one.reason}"
    return {"level": "error", "message": {"text": text}, "locations": [place]}


def _uri(path: str) -> str:
    """A path as a URI: relative ones stay relative, so that they fit any checkout."""
    pure = PurePath(path)
    text = quote(pure.as_posix())
    return f"file://{text}" if pure.is_absolute() else text
