"""Diagnosis -> text: the cause, the lines that speak for it, and what to do, the best first."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Cause, Diagnosis, OutOfMemory
from memfit.core.units import format_size

_MEANINGS: dict[Cause, str] = {
    "activations": "the batch or its activations are too large",
    "weights": "weights and optimizer are too large",
    "data_on_device": "a data set or a constant is on the device",
    "fragmentation": "enough is free, but not in one piece",
    "device_taken": "others have the device, or had it first",
    "host_memory": "the memory of the host ran out",
    "leak": "memory that is kept from step to step",
    "one_replica": "one device of several",
    "not_an_oom": "memory did not run out",
    "unknown": "the log does not say why",
}
_MOST_LINES = 8
_WHERE = re.compile(r"^(?:[IWEF]\d{4} \S+ \d+|\S+ \S+ [IWEF]) \S+\.(?:cc|h):\d+\] ")  # in TensorFlow's source


def show_diagnosis(found: Diagnosis) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    sections = [
        _headline(found),
        *([_failure(found.error, found.source)] if found.error is not None or found.source else []),
        *([_evidence(found)] if found.evidence else []),
        *([_advice(found)] if found.advice else []),
        *([_left_out(found)] if found.left_out else []),
    ]
    spaced = [part for section in sections for part in (Text(), section)]
    return Group(*spaced[1:])


def _headline(found: Diagnosis) -> RenderableType:
    style = "green" if found.cause == "not_an_oom" else "yellow" if found.cause == "unknown" else "red"
    title = Text.assemble((found.cause, f"bold {style}"), f": {_MEANINGS[found.cause]}")
    also = [Text(f"Also: {', '.join(f'{cause} ({_MEANINGS[cause]})' for cause in found.also)}.")]
    return Group(title, Text(found.summary), *(also if found.also else []))


def _failure(error: OutOfMemory | None, source: str | None) -> RenderableType:
    table = _table()
    if error is not None and error.requested_bytes is not None:
        table.add_row("asked for", f"{format_size(error.requested_bytes)} ({error.requested_bytes:,} bytes)")
    if error is not None and error.shape is not None:
        table.add_row("tensor", f"{' × '.join(map(str, error.shape))} {error.dtype or ''}".rstrip())
    for name, value in (
        ("op", error and error.op),
        ("device", error and error.device),
        ("allocator", error and error.allocator),
        ("your line", source),
    ):
        if value:
            table.add_row(name, Text(value, overflow="fold"))
    return table


def _evidence(found: Diagnosis) -> RenderableType:
    table = _table(number=True)
    for quote in found.evidence[:_MOST_LINES]:
        table.add_row(f"{quote.line}", Text(_WHERE.sub("", quote.text), overflow="fold"))
    return Group(Text("What speaks for it, by lines of the log:", style="bold"), table)


def _advice(found: Diagnosis) -> RenderableType:
    table = _table()
    for number, remedy in enumerate(found.advice, 1):
        saves = f" Saves about {format_size(remedy.saves_bytes)}." if remedy.saves_bytes else ""
        text = Text(f"{remedy.what}{saves}")
        if remedy.paste:
            text.append(f"\n{remedy.paste}", style="cyan")
        table.add_row(f"{number}.", text)
    return Group(Text("What to do, the best first:", style="bold"), table)


def _left_out(found: Diagnosis) -> RenderableType:
    table = _table()
    for note in found.left_out:
        table.add_row("-", Text(note))
    return Group(Text("What is not known:", style="bold"), table)


def _table(*, number: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, justify="right" if number else "left", style="dim" if number else "bold")
    table.add_column()
    return table
