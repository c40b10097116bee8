"""`memfit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from memfit.cli.options import (
    allow_option,
    budget_option,
    count_of,
    json_option,
    listed,
    output_option,
    quiet_option,
    say,
    show,
)

if TYPE_CHECKING:
    from memfit.core.records import Plan


@click.command(epilog="Example: memfit plan train.py:model --batch 64 --budget 400MiB")
@click.argument("target")
@click.option(
    "--batch",
    metavar="N",
    required=True,
    help="The batch size, which stays; auto: the largest that fits, and the best throughput.",
)
@budget_option
@allow_option
@click.option(
    "--float32",
    metavar="LAYER[,LAYER]",
    default="",
    help="With precision: layers that stay in float32, besides those that have to.",
)
@click.option(
    "--data", metavar="TARGET", help="A batch, a dataset or specs, where the model alone leaves it open."
)
@json_option
@output_option
@quiet_option
def plan(
    target: str,
    batch: str,
    budget: str | None,
    allow: str,
    float32: str,
    data: str | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Find the fastest way to train in a budget, without running a step.

    The batch size stays: batches are split into micro-batches whose gradients add up, and activations are
    computed again instead of being kept, as far as it takes. Nothing is trained and nothing changed.

    TARGET is as for memfit estimate. The exit code is 3 if nothing fits.
    """
    from memfit.cli.targets import UserModel
    from memfit.core.errors import NothingFits
    from memfit.core.units import parse_size
    from memfit.reports.plan_text import show_plan

    size: int | Literal["auto"] = "auto" if batch == "auto" else count_of(batch, "--batch")
    budget_bytes = None if budget is None else parse_size(budget, "--budget")
    users = UserModel(target, data)

    def make() -> Plan:
        from memfit import api

        with users.loaded(quiet=quiet or as_json) as found:
            return api.plan(
                found.model,
                size,
                budget_bytes,
                allow=listed(allow),
                float32_layers=listed(float32),
                data=found.data,
                on_stage=found.tell,
            )

    try:
        show(make, show_plan, as_json=as_json, output=output)
    except NothingFits as error:
        if as_json:
            say(error.shortfall.to_json())
        raise
