"""New Python processes for what is measured: quiet, and without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _processes import QUIET

from memfit.machine import run_in_child


def in_child(function: Callable[..., Any], limit_bytes: int, **arguments: Any) -> Any:
    """Call a module-level function in a new Python process, under a limit, and return its result."""
    return run_in_child(function, arguments, limit_bytes=limit_bytes, environment=QUIET)
