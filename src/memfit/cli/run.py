"""`memfit run`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from memfit.cli.options import allow_option, budget_option, listed


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: memfit run --budget 4GiB train.py --epochs 10",
)
@budget_option
@allow_option
@click.option("--no-plan", is_flag=True, help="Plan nothing: split batches only when they run out.")
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where checkpoints are kept; else in memfit's own folder.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    metavar="N",
    default=10,
    show_default=True,
    help="How often a script that was killed is started again.",
)
@click.option("--resume", is_flag=True, help="Go on with the last run of this script that was ended.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what happened to FILE, as JSON.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    budget: str | None,
    allow: str,
    no_plan: bool,
    checkpoints: Path | None,
    max_restarts: int,
    resume: bool,
    report: Path | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a training script as it is, so that it fits in the memory there is, and survives.

    The script has its own arguments, folder, standard streams and exit code. The fit of its models is planned
    for the budget and guarded; evaluate, predict, train_on_batch and the like are guarded. Checkpoints are
    kept while it trains: if it is killed, memfit says why, starts it again, and training goes on exactly
    where it was, in smaller steps if memory was the cause.
    """
    from memfit.core.errors import ScriptNotFound
    from memfit.core.records.plans import allowed_levers
    from memfit.core.units import parse_size
    from memfit.running.journal.run_folder import Job
    from memfit.running.parent.supervisor import run_supervised

    if not is_module and not Path(script).exists():
        raise ScriptNotFound(script, folder=Path.cwd())
    job = Job(
        script,
        arguments,
        is_module=is_module,
        is_guarded=True,
        budget_bytes=None if budget is None else parse_size(budget, "--budget"),
        allow=allowed_levers(listed(allow), ()).levers,
        plans=not no_plan,
    )
    code = run_supervised(
        job,
        os.environ,
        checkpoints=checkpoints,
        most_restarts=max_restarts,
        resumes=resume,
        report=report,
    )
    raise click.exceptions.Exit(code)
