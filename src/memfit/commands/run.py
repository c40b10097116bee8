"""`memfit run`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from memfit.commands.options import listed


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: memfit run --budget 4GiB train.py --epochs 10",
)
@click.option("--budget", metavar="SIZE", help="The memory there is; else that of this machine.")
@click.option(
    "--allow",
    metavar="LEVER[,LEVER]",
    default="micro_batch,remat",
    show_default=True,
    help="What plans may do, as for memfit plan.",
)
@click.option("--no-plan", is_flag=True, help="Plan nothing: split batches only when they run out.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    budget: str | None,
    allow: str,
    no_plan: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a training script as it is, so that it fits in the memory there is.

    The script has its own arguments, folder, standard streams and exit code. The fit of its models is planned
    for the budget and guarded; evaluate, predict, train_on_batch and the like are guarded. What it does
    otherwise is left alone. If it is killed, memfit says why.
    """
    from memfit.errors import ScriptNotFound
    from memfit.planning.wishes import leave_for
    from memfit.supervision.jobs import Job
    from memfit.supervision.parents import run_child
    from memfit.units import parse_size

    if not is_module and not Path(script).exists():
        raise ScriptNotFound(script, folder=Path.cwd())
    job = Job(
        script,
        arguments,
        is_module=is_module,
        is_guarded=True,
        budget_bytes=None if budget is None else parse_size(budget, "--budget"),
        allow=leave_for(listed(allow), ()).levers,
        plans=not no_plan,
    )
    ended = run_child(job, os.environ)
    if ended.death is not None and not ended.was_asked:
        for line in (ended.death.words, *ended.death.evidence):
            click.echo(f"memfit: {line}", err=True)
    raise click.exceptions.Exit(ended.code)
