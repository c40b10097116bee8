"""Options that several commands share, and how their output is shown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from memfit.records import Record

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the JSON record to FILE, whole or not at all.",
)


def show(
    make: Callable[[], Record], render: Callable[[Any], Any], *, as_json: bool, output: Path | None
) -> None:
    """Make a record and show it on standard output; a file that cannot be written is refused first."""
    from rich.console import Console

    from memfit.reports.files import output_file

    with output_file(output) if output else nullcontext() as write:
        record = make()
        if write is not None:
            write(record.to_json() + "\n")
    if as_json:
        click.echo(record.to_json())
    else:
        Console(highlight=False).print(render(record))
