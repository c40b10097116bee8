"""Spinners and progress bars: on standard error, and only in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from memfit.reports.bars import bar

_LABELS = {
    "plain": "plain Keras in the budget",
    "memfit": "memfit in the budget",
    "unlimited": "plain Keras, unlimited",
}
_WIDTH = 20
_LOOK_SECONDS = 0.5
_LONG_READ_BYTES = 64 * 2**20


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner for work that does not say how far it is, and a function that changes its text."""
    console = Console(stderr=True, quiet=quiet or not Console(stderr=True).is_terminal)
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(text))


def following(text: Callable[[], str], is_running: Callable[[], bool]) -> None:
    """One line that says where something is, for as long as it runs."""
    with waiting(text(), quiet=False) as tell:
        while is_running():
            tell(text())
            time.sleep(_LOOK_SECONDS)


class _Steps(ProgressColumn):
    """The progress bar of a row of the demo, in a colour for how it ended."""

    def render(self, task: Task) -> Text:
        steps, failed = task.fields["steps"], task.fields["failed"]
        style = "red" if failed else "green" if task.finished else "cyan"
        drawn = bar(task.completed, steps, _WIDTH).ljust(_WIDTH, "·")
        return Text(f"{drawn} {task.completed:>2.0f}/{steps}", style)


@contextmanager
def demo_progress(*, quiet: bool) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """A live bar for each row of the demo, with what memfit says in between."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description:<26}"),
        _Steps(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    off = quiet or not console.is_terminal
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=off) as progress:

        def on_progress(name: str, event: Mapping[str, Any]) -> None:
            if "begin" in event:
                steps = event["steps"]
                fields = {"steps": steps, "failed": False, "state": "starting"}
                tasks[name] = progress.add_task(_LABELS[name], total=steps, **fields)
            elif "step" in event:
                progress.update(tasks[name], advance=1, state=f"loss {event['loss']:.4f}")
            elif "note" in event and not off:
                progress.console.print(f"  {event['note']}", style="dim", highlight=False)
            elif event.get("oom"):
                done = progress.tasks[tasks[name]].completed
                progress.update(tasks[name], total=done, failed=True, state="[red]ran out of memory")

        yield on_progress


@contextmanager
def packing_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is done to all elements, and when it will have been done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(_WIDTH),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total, completed=done)
            progress.update(tasks[what], completed=done)

        yield on_progress


@contextmanager
def reading_progress(total_bytes: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar for a file that takes a while to read."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(_WIDTH), DownloadColumn(), TimeRemainingColumn())
    off = quiet or not console.is_terminal or (total_bytes or 0) < _LONG_READ_BYTES
    with Progress(*columns, console=console, disable=off, transient=True) as progress:
        task = progress.add_task("reading", total=total_bytes)
        yield lambda count: progress.update(task, completed=count)
