"""What lint finds in a text."""

from __future__ import annotations

from textwrap import dedent

from memfit.diagnoses.lints.linting import lint_source, wanted
from memfit.diagnoses.lints.sources import source_of
from memfit.records import LintFinding


def findings_in(code: str) -> list[LintFinding]:
    """All findings in some lines of Python."""
    source, unread = source_of("code.py", dedent(code).encode())
    assert source is not None, unread
    return lint_source(source, wanted())


def rules_in(code: str) -> list[str]:
    """The ids of the rules that find something, from top to bottom."""
    return [finding.rule for finding in findings_in(code)]
