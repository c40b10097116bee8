"""Source code and rules that are asked for and are not there."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors.base import MemfitError


class SourceNotFound(MemfitError, FileNotFoundError):
    """A file or folder to look at that does not exist."""

    def __init__(self, path: str, *, near: Sequence[str] = ()) -> None:
        self.path, self.near = path, tuple(near)
        MemfitError.__init__(
            self,
            f"{path} does not exist.",
            "Expected: a Python file, a notebook, a folder, or - for standard input",
            suggestion=f"memfit lint {near[0] if near else '.'}",
        )


class UnknownRule(MemfitError, ValueError):
    """Not the id of a rule."""

    exit_code = 2

    def __init__(self, received: str, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not the id of a rule.",
            f"Expected: {known[0]} to {known[-1]}",
            suggestion=f"memfit lint --explain {known[0]}",
        )
