"""The command line: one thin file for each command, one handler for all errors."""

from memfit.commands.main import main

__all__ = ["main"]
