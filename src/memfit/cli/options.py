"""Options that several commands share, and how their output is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from memfit.core.errors import CannotWrite, InvalidBatchSize
from memfit.core.serialization import Record

R = TypeVar("R", bound=Record)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
budget_option = click.option(
    "--budget", metavar="SIZE", help="The memory there is; else that of this machine."
)
allow_option = click.option(
    "--allow",
    metavar="LEVER[,LEVER]",
    default="micro_batch,remat",
    show_default=True,
    help="What may be done: micro_batch splits batches, remat computes activations again, precision computes "
    "in 16 bits, xla switches XLA on or off.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the JSON record to FILE, whole or not at all.",
)


def show(make: Callable[[], R], render: Callable[[R], Any], *, as_json: bool, output: Path | None) -> R:
    """Make a record and show it on standard output; a file that cannot be written is refused first."""
    from rich.console import Console

    from memfit.core.output_file import output_file

    with output_file(output) if output else nullcontext() as write:
        record = make()
        if write is not None:
            write(record.to_json() + "\n")
    shown = record.to_json() if as_json else render(record)
    if not isinstance(shown, str):  # text is for other programs, and printed as it is
        console = Console(highlight=False)
        with console.capture() as capture:
            console.print(shown)
        shown = "\n".join(line.rstrip() for line in capture.get().splitlines())
    if shown:
        say(shown)
    return record


def say(text: str) -> None:
    """Print on standard output, at once, so that what goes wrong is noticed here."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        # Keep Python from failing a second time when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(1) from error
        raise CannotWrite("standard output", error.strerror or str(error)) from error


@contextmanager
def output_set_aside() -> Iterator[None]:
    """Send what others print on standard output, from Python or below it, to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def listed(names: str) -> tuple[str, ...]:
    """The value of an option that is several names with commas."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def count_of(text: str, name: str) -> int:
    """The value of an option that is a number of samples."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidBatchSize(text, name=name)
    return int(text)
