"""`memfit diagnose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memfit.cli.options import json_option, output_option, quiet_option, show

if TYPE_CHECKING:
    from memfit.core.records import Diagnosis


@click.command(epilog="Example: memfit diagnose train.log")
@click.argument("log", required=False)
@json_option
@output_option
@quiet_option
def diagnose(log: str | None, as_json: bool, output: Path | None, quiet: bool) -> None:
    """Say why a training ran out of memory, with evidence, and what to do first.

    LOG is what a training printed, of any size, or - for standard input: TensorFlow's messages, tracebacks,
    what the system or a scheduler said. TensorFlow is not needed.

    The cause is one of activations, weights, data_on_device, fragmentation, device_taken, host_memory, leak,
    one_replica, not_an_oom, unknown. Any of them is an answer, and the exit code is 0.
    """
    from memfit.reports.diagnosis_text import show_diagnosis

    if log is None and sys.stdin.isatty():
        raise click.UsageError("Give a LOG, or - for standard input.")
    show(
        lambda: _diagnose(log or "-", quiet=quiet or as_json), show_diagnosis, as_json=as_json, output=output
    )


def _diagnose(log: str, *, quiet: bool) -> Diagnosis:
    from memfit.cli.progress import reading_progress
    from memfit.diagnosing.diagnose_any import diagnose_blocks, diagnose_file
    from memfit.diagnosing.logs.log_lines import blocks_of

    if log == "-":
        return diagnose_blocks(blocks_of(sys.stdin.buffer))
    path = Path(log)
    size = path.stat().st_size if path.is_file() else None
    with reading_progress(size, quiet=quiet) as on_bytes:
        return diagnose_file(path, on_bytes)
