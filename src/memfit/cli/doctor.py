"""`memfit doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from memfit.cli.options import json_option, output_option, quiet_option, show


@click.command(epilog="Example: memfit doctor --json")
@json_option
@output_option
@quiet_option
def doctor(as_json: bool, output: Path | None, quiet: bool) -> None:
    """Show versions, devices, allocator, limits, and what memfit would use.

    Works without TensorFlow too, and then says how to get it.
    """
    from memfit.api import examine
    from memfit.cli.progress import waiting
    from memfit.core.records import Doctor
    from memfit.reports.doctor_text import show_doctor

    def make() -> Doctor:
        with waiting("Starting TensorFlow", quiet=quiet or as_json):
            return examine()

    show(make, show_doctor, as_json=as_json, output=output)
