"""The command line: one thin file for each command, one handler for all errors."""

from memfit.cli.main import main

__all__ = ["main"]
