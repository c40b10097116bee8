"""The line of a file that lets a container grow, found in its source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator

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
