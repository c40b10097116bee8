"""`memfit report`."""

from __future__ import annotations

from pathlib import Path

import click

from memfit.cli.options import json_option, output_option, show


@click.command(epilog="Example: memfit report last")
@click.argument("run")
@click.option("--follow", is_flag=True, help="Show where it is, in one line, until it ends.")
@json_option
@output_option
def report(run: str, follow: bool, as_json: bool, output: Path | None) -> None:
    """Show what happened under memfit run, also while it runs.

    RUN is the name of a run, its folder, or last.
    """
    from memfit.cli.progress import following
    from memfit.reports.run_text import live_line, show_supervised
    from memfit.running.journal.run_folder import find_run
    from memfit.running.journal.summary import read_summary

    folder = find_run(run)
    if follow:
        following(lambda: live_line(read_summary(folder)), folder.is_running)
    show(lambda: read_summary(folder), show_supervised, as_json=as_json, output=output)
