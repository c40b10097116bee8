"""The base class of all errors of memfit."""

from __future__ import annotations

from typing import Any


class MemfitError(Exception):
    """The base class of all errors of memfit: a fact, details, and something to try."""

    exit_code = 1

    def __init__(self, fact: str, *details: str, suggestion: str) -> None:
        super().__init__("\n  ".join([fact, *details, f"Try: {suggestion}"]))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (pools pickle them), and their constructors take numbers.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[MemfitError], args: tuple[Any, ...], attributes: dict[str, Any]) -> MemfitError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
