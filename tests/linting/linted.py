"""What lint finds in a text."""

from __future__ import annotations

from textwrap import dedent

from memfit.core.records import LintFinding
from memfit.linting.lint_files import lint_source, selected_rules
from memfit.linting.source_files import source_of


def findings_in(code: str) -> list[LintFinding]:
    """All findings in some lines of Python."""
    source, unread = source_of("code.py", dedent(code).encode())
    assert source is not None, unread
    return lint_source(source, selected_rules())


def rules_in(code: str) -> list[str]:
    """The ids of the rules that find something, from top to bottom."""
    return [finding.rule for finding in findings_in(code)]
