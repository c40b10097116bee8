"""Plan -> text: what was chosen and why, what else there is, and the lines that apply it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Choice, Plan
from memfit.core.records.plans import has_note, in_words, plan_arguments, size_argument
from memfit.core.units import format_size

_CHART = (44, 8)  # columns and rows
_LETTERS = "abcdefghij"


def show_plan(plan: Plan) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    choices = (plan.chosen, *plan.alternatives)[: len(_LETTERS)]
    sections = [
        _headline(plan),
        _table(plan, choices),
        *([_chart(plan, choices)] if len(choices) > 1 else []),
        *_notes(plan),
        _lines(plan),
    ]
    spaced = [part for section in sections for part in (Text(), section)]
    return Group(*spaced[1:])


def _headline(plan: Plan) -> Text:
    chosen, budget = plan.chosen, format_size(plan.budget_bytes)
    if plan.largest_batch is not None:
        said = _batches_in_words(plan, plan.largest_batch)
    elif plan.fits_as_is:
        said = f"A batch of {plan.batch_size} fits {budget} as it is."
    else:
        said = f"To train on batches of {plan.batch_size} in {budget}: {in_words(chosen)}."
    slower = chosen.relative_time - 1
    time = (
        "as fast as without"
        if abs(slower) < 0.01
        else f"{abs(slower):.0%} {'slower' if slower > 0 else 'faster'}"
    )
    peak, safe = format_size(chosen.peak_bytes), format_size(chosen.safe_bytes)
    foretold = not plan.fits_as_is and not has_note(chosen, "XLA ")
    costs = f" A step is {time}, roughly." if foretold else ""
    return Text(
        f"{said}\nIt needs {peak}; a run stays under {safe}.{costs}\nPlanned in {plan.seconds:.1f} seconds."
    )


def _batches_in_words(plan: Plan, largest: Choice) -> str:
    budget, size = format_size(plan.budget_bytes), largest.micro_batch_size
    fits = f"The largest batch that fits {budget} is {size}: {in_words(largest)}."
    if size == plan.batch_size:
        return f"{fits} It also has the best throughput."
    return f"{fits}\nThe best throughput is at {plan.batch_size}: {in_words(plan.chosen)}."


def _table(plan: Plan, choices: Sequence[Choice]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    size = "batch" if plan.largest_batch is not None else "micro-batch"
    also = {choice.precision for choice in choices} != {"float32"}
    titles = ("", size, "segments", *(["precision"] if also else []), "peak", "stays under", "time", "")
    for title in titles:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for letter, choice in zip(_LETTERS, choices, strict=False):
        is_chosen = choice is plan.chosen
        table.add_row(
            letter,
            str(choice.micro_batch_size),
            str(len(choice.remat)) if choice.remat else "-",
            *([choice.precision.removeprefix("mixed_")] if also else []),
            format_size(choice.peak_bytes),
            format_size(choice.safe_bytes),
            f"{choice.relative_time:.2f}",
            "chosen" if is_chosen else "" if choice.exact else "not exact",
            style="bold green" if is_chosen else "",
        )
    return table


def _chart(plan: Plan, choices: Sequence[Choice]) -> RenderableType:
    """Peak against time, each choice by its letter."""
    width, height = _CHART
    slowest = max(choice.relative_time for choice in choices)
    fastest = min(choice.relative_time for choice in choices)
    rows = [[" "] * width for _ in range(height)]
    for letter, choice in reversed(list(zip(_LETTERS, choices, strict=False))):
        across = (choice.relative_time - fastest) / max(slowest - fastest, 1e-9)
        up = min(1.0, choice.safe_bytes / plan.budget_bytes)
        rows[height - 1 - round(up * (height - 1))][round(across * (width - 1))] = letter
    drawn = "\n".join("│" + "".join(row).rstrip() for row in rows)
    label = format_size(plan.budget_bytes)
    return Group(
        Text(f"Memory (up to {label}) against time:", style="bold"),
        Text(f"{drawn}\n└{'─' * width}\n {fastest:<{width // 2}.2f}{slowest:>{width // 2}.2f}", no_wrap=True),
    )


def _notes(plan: Plan) -> list[RenderableType]:
    notes = [*plan.chosen.notes, *_optimizer(plan), *_past(plan)]
    notes += [f"Left out: {note}." for note in plan.left_out]
    return [Text("\n".join(f"- {note}" for note in notes))] if notes else []


def _optimizer(plan: Plan) -> list[str]:
    """The bytes that the optimizer keeps, where that is worth a word."""
    state = plan.optimizer
    if state is None or not state.is_notable(plan.chosen.peak_bytes):
        return []
    each = f"{state.bytes_per_weight:g} bytes for each weight"
    return [f"{state.name} keeps {format_size(state.bytes)}, {each}; plain SGD would keep none. It stays."]


def _past(plan: Plan) -> list[str]:
    count = len(plan.measured)
    runs = "one run" if count == 1 else f"{count} runs"
    return [f"It aims lower, since {runs} of before needed more than foreseen."] if count else []


def _lines(plan: Plan) -> RenderableType:
    given = plan_arguments(plan.budget_bytes, plan.allow, plan.chosen.float32_layers)
    return Group(
        Text("In Python:", style="bold"),
        Text(
            "import memfit\n"
            f"memfit.limit({size_argument(plan.budget_bytes)})  # before the first op or model\n"
            f"plan = memfit.plan(model, batch_size={plan.batch_size}, {given})\n"
            "history = memfit.fit(model, x, y, plan=plan)\n"
            "print(history.run.ooms, history.run.peak_bytes)"
        ),
    )
