"""SupervisedRun -> text: what happened under `memfit run`, and one line while it happens."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.records import Attempt, SupervisedRun, SupervisedTraining
from memfit.core.records.plans import in_words
from memfit.core.units import format_size


def show_supervised(run: SupervisedRun) -> RenderableType:
    """The whole report, for a console of 80 columns or more."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("run", run.name)
    table.add_row("script", " ".join([run.script, *run.arguments]))
    table.add_row(
        "budget", "that of the machine" if run.budget_bytes is None else format_size(run.budget_bytes)
    )
    table.add_row("time", f"{run.seconds:.0f} s")
    table.add_row("state", _state(run))
    if run.process_bytes is not None:
        table.add_row("process", f"up to {format_size(run.process_bytes)} resident")
    table.add_row("checkpoints", _checkpoints(run))
    for number, attempt in enumerate(run.attempts, 1):
        for text in _attempt(attempt):
            table.add_row(f"start {number}", text)
    for training in run.trainings:
        table.add_row(f"training {training.number}", _training(training))
        if training.plan is not None and not training.plan.fits_as_is:
            table.add_row("", f"plan: {in_words(training.plan.chosen)}")
    return Group(table, *(Text(note, style="yellow") for note in run.notes))


def live_line(run: SupervisedRun) -> str:
    """The progress of a run: step, loss, micro-batch, and the peak against the budget."""
    if not run.trainings:
        return "before the first training"
    training = run.trainings[-1]
    parts = [f"training {training.number}", f"epoch {training.epoch + 1}", f"step {training.steps}"]
    if training.loss is not None:
        parts.append(f"loss {training.loss:.4g}")
    if training.micro_batch_size is not None:
        parts.append(f"micro-batch {training.micro_batch_size}")
    if training.peak_bytes is not None:
        of = "" if run.budget_bytes is None else f" of {format_size(run.budget_bytes)}"
        parts.append(f"peak {format_size(training.peak_bytes)}{of}")
    if training.ooms:
        parts.append(f"out of memory {_times(training.ooms)}")
    return ", ".join(parts)


def _state(run: SupervisedRun) -> str:
    if run.code is None:
        return f"running: {live_line(run)}"
    if not run.is_over:
        return f"ended with code {run.code}; it can be resumed"
    return "done" if run.code == 0 else f"ended with code {run.code}"


def _checkpoints(run: SupervisedRun) -> str:
    share = run.checkpoint_seconds / run.seconds if run.seconds else 0.0
    return f"{run.checkpoints}, in {run.checkpoint_seconds:.1f} s ({share:.1%} of the time)"


def _attempt(attempt: Attempt) -> list[str]:
    if attempt.words is not None:
        return [attempt.words, *attempt.evidence]
    return ["running" if attempt.code is None else f"ended with code {attempt.code}"]


def _training(training: SupervisedTraining) -> str:
    parts = [f"{training.steps} steps"]
    if not training.is_over:
        parts.append("not over")
    if training.micro_batch_size is not None:
        parts.append(f"micro-batches of {training.micro_batch_size}")
    if training.peak_bytes is not None:
        parts.append(f"peak {format_size(training.peak_bytes)}")
    parts.append(f"out of memory {_times(training.ooms)}" if training.ooms else "never out of memory")
    return ", ".join(parts)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
