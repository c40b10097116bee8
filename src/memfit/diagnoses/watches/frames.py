"""The calls that are under way, and which of them are the user's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from memfit.sources import is_library, shown_line

_HOLDERS_OF_LOCALS = 3  # the frame, a name here, and the argument of the function that counts


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those around it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs the user's code; what was given to `python -c` is."""
    filename = frame.f_code.co_filename
    if filename.startswith("<"):
        return frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>"
    return not is_library(filename)


def users_frames(frame: FrameType | None) -> list[FrameType]:
    """Those of the user's calls that are under way, innermost first."""
    return [one for one in frames_from(frame) if is_users(one)]


def users_lines(stack: Iterable[Any], frame: FrameType | None) -> tuple[str, ...]:
    """The user's lines in a stack, innermost first, none twice; by the frames where the stack has none."""
    lines = [shown_line(call.filename, call.lineno) for call in stack if not is_library(call.filename)]
    if not lines:
        lines = [f"{one.f_code.co_filename}:{one.f_lineno}" for one in users_frames(frame)][::-1]
    return tuple(dict.fromkeys(reversed(lines)))


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The names of a call and their values, without a copy of them staying behind.

    Before Python 3.13 a frame keeps what it was last asked for, and with it values that its function has long
    dropped. That copy is emptied, unless somebody else holds it: `locals()` hands out the same one, and a
    debugger writes it back.
    """
    values = frame.f_locals
    found = dict(values)
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and isinstance(values, dict)
    if is_copy and frame.f_trace is None and sys.getrefcount(values) == _HOLDERS_OF_LOCALS:
        values.clear()
    return found


def self_of(frame: FrameType) -> Any:
    """What a method's frame has as `self`."""
    return locals_of(frame).get("self")
