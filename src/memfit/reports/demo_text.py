"""Demo -> text: a table of three rows, the loss curves beside each other, and the verdict."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Demo, DemoRow
from memfit.core.units import format_size
from memfit.reports.bars import bar

_LOSS_WIDTH = 14
_PEAK_WIDTH = 12


def show_demo(demo: Demo) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    return Group(_heading(demo), Text(), _rows(demo), Text(), _curves(demo), Text(), _verdict(demo))


def _heading(demo: Demo) -> Text:
    return Text(
        f"A convolutional autoencoder on {demo.images} images, batch size {demo.batch_size}, "
        f"epochs: {demo.epochs}.\nBudget: {format_size(demo.budget_bytes)} on {demo.device} "
        "(TensorFlow's own allocator with a hard limit)."
    )


def _rows(demo: Demo) -> Table:
    largest = max(row.peak_bytes for row in demo.rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "outcome", "peak"):
        table.add_column(name, no_wrap=True)
    table.add_column("", width=_PEAK_WIDTH, no_wrap=True)
    for name in ("micro-batch", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in demo.rows:
        over = row.peak_bytes > demo.budget_bytes
        table.add_row(
            row.name,
            _outcome(row),
            format_size(row.peak_bytes),
            Text(bar(row.peak_bytes, largest, _PEAK_WIDTH), style="yellow" if over or row.oom else "green"),
            str(row.micro_batch_size),
            f"{row.seconds:.1f}",
        )
    return table


def _outcome(row: DemoRow) -> Text:
    if row.oom:
        return Text("ran out", style="bold red")
    if row.ooms_survived:
        return Text(f"trained, {row.ooms_survived} OOM{'s' * (row.ooms_survived > 1)}", style="green")
    return Text("trained", style="green")


def _curves(demo: Demo) -> RenderableType:
    """The loss curves of memfit and of the unlimited run, epoch by epoch."""
    ours, reference = _row(demo, "memfit"), _row(demo, "unlimited")
    highest = max((*ours.loss, *reference.loss), default=0.0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("epoch", "memfit", "", "unlimited", "", "difference"):
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    table.columns[2].width = table.columns[4].width = _LOSS_WIDTH
    for epoch, (mine, theirs) in enumerate(zip(ours.loss, reference.loss, strict=False), start=1):
        table.add_row(
            str(epoch),
            f"{mine:.6f}",
            Text(bar(mine, highest, _LOSS_WIDTH), style="cyan"),
            f"{theirs:.6f}",
            Text(bar(theirs, highest, _LOSS_WIDTH), style="blue"),
            _difference(_relative(mine, theirs)),
        )
    return Group(Text("Loss after each epoch:", style="bold"), table)


def _difference(relative: float) -> str:
    return f"{relative:.0e}" if relative else "0"


def _relative(mine: float, theirs: float) -> float:
    return abs(mine - theirs) / abs(theirs) if theirs else abs(mine)


def _row(demo: Demo, name: str) -> DemoRow:
    return next(row for row in demo.rows if row.name == name)


def _verdict(demo: Demo) -> Text:
    plain, ours, reference = (_row(demo, name) for name in ("plain", "memfit", "unlimited"))
    worst = max((_relative(*pair) for pair in zip(ours.loss, reference.loss, strict=False)), default=0.0)
    lines = [_verdict_on_plain(plain, demo)]
    lines.append(
        f"memfit trained the same model in {format_size(ours.peak_bytes)}, in micro-batches of "
        f"{ours.micro_batch_size}; its loss {_comparison(worst)} with unlimited memory "
        f"({format_size(reference.peak_bytes)})."
    )
    if not ours.ooms_survived:
        lines.append("It was planned before the first step: nothing ran out, and no time was lost on it.")
    if ours.oom_seconds:
        lines.append(
            f"{ours.oom_seconds:.0f} of its {ours.seconds:.0f} seconds went into finding the micro-batch: "
            "TensorFlow waits about ten before it reports that memory ran out."
        )
    return Text("\n".join(lines))


def _comparison(worst: float) -> str:
    return f"is within {_difference(worst)} (relative) of that" if worst else "is the same as that"


def _verdict_on_plain(plain: DemoRow, demo: Demo) -> str:
    if plain.error is None:
        return f"Plain Keras fits into {format_size(demo.budget_bytes)}: a smaller --budget shows more."
    how = ", " if plain.error.requested_bytes is not None else ": "
    return f"Plain Keras ran out of memory in its step{how}{plain.error.describe()}."
