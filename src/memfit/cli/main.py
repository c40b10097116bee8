"""`memfit`: the group of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

from memfit.cli.completion import completion
from memfit.cli.demo import demo
from memfit.cli.diagnose import diagnose
from memfit.cli.doctor import doctor
from memfit.cli.estimate import estimate
from memfit.cli.lint import lint
from memfit.cli.pack import pack
from memfit.cli.plan import plan
from memfit.cli.report import report
from memfit.cli.run import run as run_script
from memfit.core.errors import MemfitError
from memfit.core.version import __version__


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here: memfit demo",
)
@click.version_option(__version__, prog_name="memfit")
def cli() -> None:
    """Make TensorFlow/Keras training fit in the memory there is.

    Exit codes: 0 done, 1 error (lint: findings), 2 usage, 3 does not fit, 128 + n ended by signal n.
    """


for _command in (demo, doctor, estimate, plan, run_script, report, diagnose, lint, pack, completion):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    if run_script.name not in sys.argv[1:2]:  # a script's TensorFlow says what it says
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="memfit", standalone_mode=False)
    except MemfitError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():
            # An interrupted progress bar may have hidden the cursor.
            click.echo("\x1b[?25h", err=True, nl=False)
        click.echo("Interrupted.", err=True)
        return 128 + signal.SIGINT
    return code if isinstance(code, int) else 0
