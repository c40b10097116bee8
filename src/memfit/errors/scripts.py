"""Scripts, their runs, and the processes that memfit starts."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors.base import MemfitError


class ScriptNotFound(MemfitError):
    """A script that is not there."""

    exit_code = 2

    def __init__(self, script: str, *, folder: object) -> None:
        self.script, self.folder = script, folder
        is_path = "/" in script or script.endswith(".py")
        super().__init__(
            f"there is no script {script!r} in {folder}.",
            suggestion="the path of a script that is there" if is_path else f"memfit run -m {script}",
        )


class DamagedCheckpoint(MemfitError):
    """A checkpoint that was cut off, or that has changed since it was written."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        super().__init__(
            f"the checkpoint {path} is damaged: {problem}.",
            suggestion="the one before it",
        )


class CannotResume(MemfitError):
    """A script that, started again, is not at the point where it was."""

    def __init__(self, what: str, *, expected: str, received: str) -> None:
        self.expected, self.received = expected, received
        super().__init__(
            f"this run cannot be resumed: {what}.",
            f"Expected: {expected}",
            f"Received: {received}",
            suggestion="memfit run without --resume, to begin anew",
        )


class RunNotFound(MemfitError):
    """No such run is known."""

    exit_code = 2

    def __init__(self, what: str, *, folder: object, suggestion: str) -> None:
        self.folder = folder
        super().__init__(f"there is no run of {what} in {folder}.", suggestion=suggestion)


class ChildFailed(MemfitError):
    """A process that memfit started ended without a result."""

    def __init__(self, target: str, *, exit_code: int | None, last_lines: Sequence[str]) -> None:
        self.target, self.child_exit_code = target, exit_code
        super().__init__(
            f"the process that ran {target} {_ending(exit_code)}.",
            *(f"| {line}" for line in last_lines),
            suggestion="memfit doctor",
        )


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "raised an error"
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code} and no result"
