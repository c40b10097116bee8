"""`memfit estimate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memfit.cli.options import count_of, json_option, output_option, quiet_option, show

if TYPE_CHECKING:
    from memfit.core.records import Call, Estimate, Estimates


@click.command(epilog="Example: memfit estimate train.py:model --batch 16,32,64 --budget 4GiB")
@click.argument("target")
@click.option("--batch", metavar="N[,N...]", help="The batch size, or several.")
@click.option(
    "--data", metavar="TARGET", help="A batch, a dataset or specs, where the model alone leaves it open."
)
@click.option("--budget", metavar="SIZE", help="The memory to compare with.")
@click.option("--micro-batch", metavar="N", help="Split batches into micro-batches of N, as memfit.fit does.")
@click.option(
    "--call", type=click.Choice(("fit", "evaluate", "predict")), default="fit", help="What shall run."
)
@click.option(
    "--probe/--no-probe",
    default=None,
    help="Run kernels on a few samples to see what they need; else only unknown ones.",
)
@click.option("--largest", is_flag=True, help="Find the largest batch that fits the budget.")
@json_option
@output_option
@quiet_option
def estimate(
    target: str,
    batch: str | None,
    data: str | None,
    budget: str | None,
    micro_batch: str | None,
    call: Call,
    probe: bool | None,
    largest: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Show what a training step will need, before it runs.

    The peak, what it consists of, and the layers that cost most. Nothing is trained and nothing changed.

    TARGET is file.py:name, package.module:name (a model, or a function without arguments that returns one) or
    a .keras file. A file is imported, not run: training belongs under if __name__ == "__main__".

    With a budget the exit code is 3 if it is not sure that the batch fits, or any of several.
    """
    from memfit.cli.targets import UserModel
    from memfit.core.units import parse_size
    from memfit.reports.estimate_text import show_estimates

    sizes = _sizes(batch, budget, largest=largest)
    budget_bytes = None if budget is None else parse_size(budget, "--budget")
    micro_batch_size = None if micro_batch is None else count_of(micro_batch, "--micro-batch")
    how: dict[str, Any] = {"micro_batch_size": micro_batch_size, "call": call, "probe": probe}
    users = UserModel(target, data)

    def make() -> Estimate | Estimates:
        with users.loaded(quiet=quiet or as_json) as found:
            return _estimate(found.model, sizes, budget_bytes, found.tell, data=found.data, **how)

    record = show(make, show_estimates, as_json=as_json, output=output)
    _check_fits(record, instead=f"memfit estimate {target} --budget {budget} --largest")


def _sizes(batch: str | None, budget: str | None, *, largest: bool) -> list[int]:
    """The batch sizes that are asked for; none of them when it is the largest."""
    if largest and budget is None:
        raise click.UsageError("--largest needs a --budget.")
    if largest == (batch is not None):
        raise click.UsageError("Give one of --batch and --largest.")
    return [] if batch is None else [count_of(text.strip(), "--batch") for text in batch.split(",")]


def _estimate(
    model: Any, sizes: list[int], budget_bytes: int | None, tell: Callable[[str], None], **how: Any
) -> Estimate | Estimates:
    from memfit.core.records import Estimates
    from memfit.estimating.estimate_series import estimate_series, largest_batch

    def tell_size(size: int) -> None:
        tell(f"Estimating a batch of {size}")

    if budget_bytes is not None and not sizes:
        return largest_batch(model, budget_bytes, on_size=tell_size, **how)
    series = estimate_series(model, sizes, budget=budget_bytes, **how)
    found = []
    for size in sizes:
        tell_size(size)
        found.append(next(series))
    return found[0] if len(found) == 1 else Estimates(tuple(found))


def _check_fits(record: Estimate | Estimates, *, instead: str) -> None:
    from memfit.core.records import Estimate
    from memfit.estimating.estimate_series import check_fits

    found = (record,) if isinstance(record, Estimate) else record.estimates
    least = min(found, key=lambda one: one.safe_bytes)
    suggestion = instead if least.batch_size > 1 else f"--budget {-(-least.safe_bytes >> 20)}MiB"
    check_fits(least, suggestion=suggestion)
