"""`memfit completion`."""

from __future__ import annotations

import click

from memfit.cli.options import say


@click.command(epilog='Example: eval "$(memfit completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes memfit's commands in your shell."""
    from click.shell_completion import get_completion_class

    group = context.find_root().command
    complete = get_completion_class(shell)
    assert complete is not None
    say(complete(group, {}, "memfit", "_MEMFIT_COMPLETE").source())
