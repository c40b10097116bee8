"""The calls that are under way, and which of them are the user's."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from memfit.core.user_code import is_library, shown_line

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
    dropped. That copy is emptied, unless other code holds it: `locals()` hands out the same one, and a
    debugger writes it back.
    """
    values = frame.f_locals
    found = dict(values)
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and isinstance(values, dict)
    if is_copy and frame.f_trace is None and sys.getrefcount(values) == _HOLDERS_OF_LOCALS:
        values.clear()
    return found


def self_of(frame: FrameType) -> Any:
    """The value of `self` in a method's frame."""
    return locals_of(frame).get("self")


_Node = ast.stmt | ast.expr
_GROWING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})


def growing_lines(file: str, name: str, *, first: int = 1, last: int | None = None) -> list[int]:
    """The lines between two that add to a variable or an attribute of a name; those in loops come first."""
    return _lines(file, lambda tree: _growing(tree, name), first, last)


def passing_lines(file: str, name: str, *, first: int = 1, last: int | None = None) -> list[int]:
    """The lines between two that call something with a variable or an attribute of a name."""
    return _lines(file, lambda tree: _passing(tree, name), first, last)


def _lines(file: str, find: Callable[[ast.AST], Iterable[_Node]], first: int, last: int | None) -> list[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    in_loops = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While | ast.AsyncFor)
        for inner in ast.walk(node)
    }
    found = [
        (id(node) not in in_loops, node.lineno)
        for node in find(tree)
        if node.lineno >= first and (last is None or node.lineno <= last)
    ]
    return list(dict.fromkeys(line for _, line in sorted(found)))


def _passing(tree: ast.AST, name: str) -> Iterator[_Node]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_refers(argument, name) for argument in given):
                yield node


def _growing(tree: ast.AST, name: str) -> Iterator[_Node]:
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                grows = _is_growing_call(node, name)
            case ast.AugAssign():
                grows = _refers(node.target, name)
            case ast.Assign():
                grows = any(_is_grown(node, target, name) for target in node.targets)
            case _:
                continue
        if grows:
            yield node


def _is_growing_call(node: ast.Call, name: str) -> bool:
    function = node.func
    return isinstance(function, ast.Attribute) and function.attr in _GROWING and _refers(function.value, name)


def _is_grown(node: ast.Assign, target: ast.expr, name: str) -> bool:
    """Whether an element is set, or the name is set to itself and more."""
    if isinstance(target, ast.Subscript):
        return _refers(target.value, name)
    is_sum = isinstance(node.value, ast.BinOp | ast.List | ast.Tuple)
    return _refers(target, name) and is_sum and any(_refers(part, name) for part in ast.walk(node.value))


def _refers(node: ast.AST, name: str) -> bool:
    """Whether an expression is a variable or an attribute of a name, or an element of one."""
    if isinstance(node, ast.Subscript):
        return _refers(node.value, name)
    if isinstance(node, ast.Attribute):
        return node.attr == name
    if isinstance(node, ast.Starred):
        return _refers(node.value, name)
    return isinstance(node, ast.Name) and node.id == name
