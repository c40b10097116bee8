"""Each rule's own examples: 'before' is found by it alone, 'after' is clean, and the documents show both."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from linting.linted import findings_in, rules_in
from memfit.linting.lint_files import RULES
from memfit.linting.rule import Rule
from memfit.reports.lint_text import markdown

PAGE = Path(__file__).parents[2] / "docs" / "lint.md"
FACTS = re.compile(r"\d|keeps every|slots|RuntimeError")


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_before_is_found_and_after_is_clean(rule: Rule) -> None:
    assert rules_in(rule.about.before) == [rule.about.id]
    assert rules_in(rule.about.after) == []


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_finding_says_what_why_and_what_to_do(rule: Rule) -> None:
    (finding,) = findings_in(rule.about.before)
    assert "{subject}" not in finding.message
    assert finding.message
    assert finding.fix == rule.about.fix
    assert finding.source.strip()
    assert FACTS.search(rule.about.reason), "a reason has a figure, or says what is kept"
    assert ("may" in finding.message.split()) == (finding.severity == "note")


def test_ids_are_in_a_row_and_names_differ() -> None:
    assert list(RULES) == [f"MF{number:03}" for number in range(1, len(RULES) + 1)]
    assert len({rule.about.name for rule in RULES.values()}) == len(RULES)


def test_the_page_shows_every_rule() -> None:
    head, mark, _ = PAGE.read_text().partition("| rule | severity | finds |\n| --- | --- | --- |\n")
    rows = [
        f"| [{rule.about.id}](#{rule.about.anchor}) | {rule.about.severity} | {rule.about.summary} |\n"
        for rule in RULES.values()
    ]
    sections = "\n".join(markdown(rule.about, 120) for rule in RULES.values())
    page = f"{head}{mark}{''.join(rows)}\n{sections}"
    if os.environ.get("MEMFIT_GOLDEN") == "write":
        PAGE.write_text(page)
    assert PAGE.read_text() == page
