"""Lint -> SARIF 2.1.0, which code scanners and editors read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from memfit.records import Lint, LintFinding, LintRule, UnreadSource
from memfit.reports.lints import markdown
from memfit.version import __version__

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
