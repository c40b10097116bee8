"""Models and data that a command line names and that cannot be had."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors.base import MemfitError


class InvalidTarget(MemfitError, ValueError):
    """Not of the form that names a model or data."""

    exit_code = 2

    def __init__(self, received: str, *, title: str, expected: str, suggestion: str) -> None:
        self.received = received
        super().__init__(
            f"expected {title} to be {expected}.", f"Received: {received}", suggestion=suggestion
        )


class TargetNotFound(InvalidTarget):
    """A file, a module or a name in it that does not exist."""

    def __init__(self, received: str, missing: str, *, near: Sequence[str], suggestion: str) -> None:
        self.received, self.near = received, tuple(near)
        MemfitError.__init__(
            self,
            f"{missing} does not exist.",
            f"Received: {received}",
            *([f"Names that are there: {', '.join(near)}"] if near else []),
            suggestion=suggestion,
        )


class WrongTarget(MemfitError, TypeError):
    """Something else than a model or data."""

    exit_code = 2

    def __init__(self, target: str, problem: str, *, expected: str, suggestion: str) -> None:
        self.target, self.problem = target, problem
        super().__init__(f"{target} {problem}.", f"Expected: {expected}", suggestion=suggestion)


class TargetFailed(MemfitError):
    """The user's own code raised while it was loaded or traced."""

    def __init__(self, target: str, doing: str, reason: str, *, where: str | None, suggestion: str) -> None:
        self.target, self.reason, self.where = target, reason, where
        super().__init__(
            f"{target} failed {doing}: {reason}.",
            *([] if where is None else [where]),
            suggestion=suggestion,
        )


class CannotLoadModel(MemfitError):
    """A .keras file that cannot be read, or not without running code from it."""

    def __init__(self, path: str, reason: str, *, suggestion: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot load {path}: {reason}.", suggestion=suggestion)
