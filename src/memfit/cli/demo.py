"""`memfit demo`."""

from __future__ import annotations

from pathlib import Path

import click

from memfit.cli.options import json_option, output_option, quiet_option, show
from memfit.demo.settings import BUDGET, EPOCHS


@click.command(epilog="Example: memfit demo --budget 128MiB --epochs 6")
@click.option("--budget", metavar="SIZE", default=BUDGET, show_default=True, help="The memory to train in.")
@click.option(
    "--epochs", type=click.IntRange(1, 100), default=EPOCHS, show_default=True, help="How long to train."
)
@json_option
@output_option
@quiet_option
def demo(budget: str, epochs: int, as_json: bool, output: Path | None, quiet: bool) -> None:
    """Show the main job end to end.

    A convolutional autoencoder that plain Keras cannot train in the budget, and memfit can: three runs,
    each in a process of its own, side by side. Takes about a minute.
    """
    from memfit.cli.progress import demo_progress
    from memfit.core.records import Demo
    from memfit.core.units import parse_size
    from memfit.demo.main_job import run_demo
    from memfit.machine import check_fits_machine, check_installed
    from memfit.reports.demo_text import show_demo

    budget_bytes = parse_size(budget, "--budget", least_bytes=2**20)
    check_fits_machine(budget_bytes, name="--budget")
    check_installed()

    def make() -> Demo:
        with demo_progress(quiet=quiet or as_json) as progress:
            return run_demo(budget_bytes, epochs=epochs, on_progress=progress)

    show(make, show_demo, as_json=as_json, output=output)
