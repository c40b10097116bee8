"""Estimate -> text: peak, budget, parts, layers and lines that cost most; for several sizes a row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Estimate, Estimates
from memfit.core.units import format_size
from memfit.reports.bars import bar, columns

_WIDTH = 30
_NARROW = 12  # of a bar beside lines of code
_LONGEST_NAME = 28
_LONGEST_LINE = 22
_MOST_LAYERS = 10
_WIDE = 0.75  # where so little is sure, the report names both ends
_HEIGHT = 4
_METHODS = {"graph": "graph mode", "xla": "XLA"}
_PARTS = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients and update",
    "optimizer_bytes": "optimizer",
    "activations_bytes": "activations",
    "scratch_bytes": "scratch of kernels",
    "allocator_bytes": "rounding up",
    "data_bytes": "the batch",
}


def show_estimates(found: Estimate | Estimates) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    every = found.estimates if isinstance(found, Estimates) else (found,)
    sections = [_series(every)] if isinstance(found, Estimates) else _one(found)
    spaced = [part for section in [*sections, *_left_out(every)] for part in (Text(), section)]
    return Group(*spaced[1:])


def _one(found: Estimate) -> list[RenderableType]:
    parts = [(_PARTS[name], size, "") for name, size in dataclasses.asdict(found.parts).items()]
    return [
        _headline(found),
        *([] if found.budget_bytes is None else [_comparison(found, found.budget_bytes)]),
        *([_timeline(found)] if found.timeline else []),
        _ranking("What is in memory at the peak:", parts, found.peak_bytes),
        *([_layers(found)] if found.layers else []),
    ]


def _headline(found: Estimate) -> Text:
    low, peak, safe = map(format_size, (found.low_bytes, found.peak_bytes, found.safe_bytes))
    is_wide = found.low_bytes < _WIDE * found.safe_bytes
    needs = f"between {low} and {safe}" if is_wide else f"{peak}; a run stays under {safe}"
    how = f"{_METHODS[found.method]}, with kernels probed," if found.probed else _METHODS[found.method]
    return Text(
        f"A training step on a batch of {found.batch_size} needs {needs}.\n"
        f"Estimated for {how} in {found.seconds:.1f} seconds."
    )


def _comparison(found: Estimate, budget_bytes: int) -> RenderableType:
    full = max(found.safe_bytes, budget_bytes)
    style, _, sentence = _verdict(found, budget_bytes)
    table = _table("", ">", "")
    for name, size, colour in (
        ("budget", budget_bytes, "blue"),
        ("peak", found.peak_bytes, style),
        ("stays under", found.safe_bytes, style),
    ):
        table.add_row(name, format_size(size), Text(bar(size, full, _WIDTH), style=colour))
    return Group(table, Text(sentence, style=style))


def _verdict(found: Estimate, budget_bytes: int) -> tuple[str, str, str]:
    """A colour, a word and a sentence."""
    safe, peak = found.safe_bytes - budget_bytes, found.peak_bytes - budget_bytes
    if found.fits == "for sure":
        how = (
            f"with {format_size(-safe)} to spare"
            if safe <= 0
            else "as operations wait for each other where memory is short"
        )
        return "green", "fits", f"It fits, {how}."
    if found.fits == "no":
        beyond = (
            f"the peak is {format_size(peak)} above the budget"
            if peak > 0
            else "the gaps in the pool take what is left"
        )
        return "red", "does not fit", f"It does not fit: {beyond}."
    beyond = (
        f"a run could need {format_size(safe)} more than the budget"
        if safe > 0
        else f"{format_size(-safe)} to spare are little for the gaps in the pool"
    )
    return "yellow", "may fit", f"It may fit: {beyond}."


def _timeline(found: Estimate) -> RenderableType:
    """The chart of the memory in use in the course of a step."""
    rows = columns(found.timeline, found.peak_bytes, _HEIGHT)
    drawn = "\n".join(rows)
    return Group(
        Text("In use in the course of a step:", style="bold"), Text(drawn, style="cyan", no_wrap=True)
    )


def _layers(found: Estimate) -> RenderableType:
    """The layers, with their lines of the user's code, and lines that are in no layer."""
    shown = found.layers[:_MOST_LAYERS]
    what = "layers" if all(layer.name for layer in shown) else "layers and lines"
    rows = []
    for layer in shown:
        line = _shortened(layer.line)
        rows.append((layer.name or line, layer.bytes, line if layer.name else ""))
    return _ranking(f"The {what} that hold most of it:", rows, found.peak_bytes)


def _shortened(line: str) -> str:
    """A line of code by its end, which says more than its beginning."""
    return line if len(line) <= _LONGEST_LINE else f"…{line[1 - _LONGEST_LINE :]}"


def _ranking(title: str, rows: Sequence[tuple[str, int, str]], whole_bytes: int) -> RenderableType:
    """Names, bytes and lines of code, the largest first, with their share of the whole."""
    ranked = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    has_lines = any(line for _, _, line in rows)
    table = _table("", ">", ">", "", *[""] * has_lines)
    table.columns[0].max_width = _LONGEST_LINE if has_lines else _LONGEST_NAME
    for name, size, line in ranked:
        share = f"{100 * size / whole_bytes:.0f} %"
        drawn = Text(bar(size, ranked[0][1], _NARROW if has_lines else _WIDTH), style="cyan")
        table.add_row(Text(name), format_size(size), share, drawn, *[Text(line)] * has_lines)
    return Group(Text(title, style="bold"), table)


def _series(every: Sequence[Estimate]) -> RenderableType:
    budget_bytes = every[0].budget_bytes
    full = max(found.safe_bytes for found in every)
    table = _table("batch>", "peak>", "stays under>", "", "")
    for found in every:
        style, word, _ = ("cyan", "", "") if budget_bytes is None else _verdict(found, budget_bytes)
        drawn = Text(bar(found.safe_bytes, full, _WIDTH), style=style)
        sizes = (format_size(found.peak_bytes), format_size(found.safe_bytes))
        table.add_row(str(found.batch_size), *sizes, drawn, Text(word, style=style))
    return table if budget_bytes is None else Group(table, Text(), Text(_largest(every, budget_bytes)))


def _largest(every: Sequence[Estimate], budget_bytes: int) -> str:
    fitting = [found.batch_size for found in every if found.fits == "for sure"]
    within = f"the budget of {format_size(budget_bytes)}"
    return f"The largest of these that fits {within}: {max(fitting)}." if fitting else f"None fits {within}."


def _left_out(every: Sequence[Estimate]) -> list[RenderableType]:
    """The assumptions and omissions of the estimates, each once."""
    notes = dict.fromkeys(note for found in every for note in found.left_out)
    if not notes:
        return []
    table = _table("", "")
    for note in notes:
        table.add_row("-", Text(note))
    table.columns[1].no_wrap = False
    return [Group(Text("What the estimate assumes or leaves out:", style="bold"), table)]


def _table(*columns: str) -> Table:
    """A table without lines; a title that ends with > is that of a column of numbers."""
    titled = any(title.strip(">") for title in columns)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=titled)
    for title in columns:
        justify: Literal["left", "right"] = "right" if title.endswith(">") else "left"
        table.add_column(title.strip(">"), justify=justify, no_wrap=True)
    return table
