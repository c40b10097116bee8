"""`memfit lint`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memfit.cli.options import json_option, listed, output_option, quiet_option, show

if TYPE_CHECKING:
    from memfit.core.records import Lint, Severity
    from memfit.linting.lint_files import SelectedRules


@click.command(epilog="Example: memfit lint train.py notebooks --severity warning")
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option("--select", metavar="RULE[,RULE]", default="", help="Only these rules.")
@click.option("--ignore", metavar="RULE[,RULE]", default="", help="All rules but these.")
@click.option(
    "--severity",
    type=click.Choice(("note", "warning", "error")),
    default="note",
    show_default=True,
    help="The least that is reported: notes are what may be.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "github", "sarif")),
    default="text",
    show_default=True,
    help="For people, for GitHub's workflows, or for code scanners.",
)
@click.option("--explain", metavar="RULE", help="Say what a rule is about, and look at nothing.")
@json_option
@output_option
@quiet_option
def lint(
    paths: tuple[str, ...],
    select: str,
    ignore: str,
    severity: Severity,
    form: str,
    explain: str | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Find code that will eat memory, without running it.

    PATH is a Python file, a notebook, a folder, or - for standard input; several may be given. Hidden
    folders, virtual environments and site-packages inside of folders are left out.

    A line with the comment "# memfit: ignore[MF001]" is left alone by that rule, one with
    "# memfit: ignore" by all, a file with "# memfit: ignore-file" too. The exit code is
    1 if anything is found or cannot be read.
    """
    if explain is not None:
        return _explain(explain, as_json=as_json, output=output)
    if not paths:
        raise click.UsageError("Missing argument 'PATH...'.")
    if as_json and form != "text":
        raise click.UsageError("Give one of --json and --format.")
    from memfit.linting.lint_files import selected_rules

    rules = selected_rules(listed(select), listed(ignore), severity)
    found = _lint(
        paths, rules, form, as_json=as_json, output=output, quiet=quiet or as_json or form != "text"
    )
    if not found.is_clean:
        raise click.exceptions.Exit(1)
    return None


def _explain(name: str, *, as_json: bool, output: Path | None) -> None:
    from memfit.linting.lint_files import explain
    from memfit.reports.lint_text import show_rule

    show(lambda: explain(name), show_rule, as_json=as_json, output=output)


def _lint(
    paths: tuple[str, ...],
    rules: SelectedRules,
    form: str,
    *,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> Lint:
    from memfit.cli.progress import waiting
    from memfit.linting.lint_files import lint
    from memfit.reports.lint_text import github, sarif, show_lint

    def make() -> Lint:
        with waiting("Looking through the code", quiet=quiet):
            return lint(paths, rules, standard_input=sys.stdin.buffer.read)

    renderers: dict[str, Callable[[Lint], Any]] = {
        "text": show_lint,
        "github": github,
        "sarif": lambda found: sarif(found, [rule.about for rule in rules.rules]),
    }
    return show(make, renderers[form], as_json=as_json, output=output)
