"""The lines of the user's code that operations come from."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from memfit.sources import is_library, shown_line

_BACKWARD = "gradient_tape/"
_TRACING = os.fspath(Path(__file__).parent) + os.sep


class Frame(Protocol):
    """A call in a traceback."""

    @property
    def filename(self) -> str:
        """The file that it is in."""
        ...

    @property
    def lineno(self) -> int:
        """The line there."""
        ...


class Lines:
    """The lines that the operations of a traced graph come from."""

    def __init__(self, graph: Any, called: Callable[[Any], Any]) -> None:
        """`called` gives the traced graph that an operation calls, or None."""
        self._operations = {operation.name: operation for operation in graph.get_operations()}
        self._called = called
        self._known: dict[str, str] = {}
        self._of_tracebacks: dict[Any, str] = {}  # most operations share theirs with others
        self._of_scopes: dict[str, set[str]] = {}

    def of(self, name: str) -> str:
        """The user's line that an operation comes from, or what it is the gradient of; empty without one.

        What TensorFlow has put in the place of an operation since is named after it.
        """
        call = self._call_around(name)
        if call:
            inside = self._inside[call]
            return inside.of(name.removeprefix(f"{call}/")) or self._line(self._operations[call])
        _, is_backward, origin = name.rpartition(_BACKWARD)
        scope = _scope(origin)
        origin = scope if is_backward else origin
        while origin and origin not in self._operations:
            origin = _scope(origin)
        if origin:
            return self._line(self._operations[origin])
        operation = self._operations.get(name)
        if operation is None:
            return ""
        return (is_backward and self._line_of_gradient(operation, scope)) or self._line(operation)

    def _line_of_gradient(self, operation: Any, scope: str) -> str:
        """The one line of the scope that it names, or else that of what it takes from there."""
        if scope not in self._of_scopes:
            self._of_scopes[scope] = set(map(self._line, self._scopes.get(scope, ())))
        lines = self._of_scopes[scope]
        if len(lines) == 1:
            return next(iter(lines))
        taken = (tensor.op for tensor in operation.inputs)
        return next((self._line(other) for other in taken if _scope(other.name) == scope), "")

    def _call_around(self, name: str) -> str:
        """The operation that calls the graph that an operation was in; empty where none does."""
        scope = _scope(name) if self._inside else ""
        while scope and scope not in self._inside:
            scope = _scope(scope)
        return scope

    @functools.cached_property
    def _inside(self) -> dict[str, Lines]:
        """The lines of the graphs that operations call."""
        graphs = ((name, self._called(operation)) for name, operation in self._operations.items())
        return {name: Lines(graph, self._called) for name, graph in graphs if graph is not None}

    @functools.cached_property
    def _scopes(self) -> dict[str, list[Any]]:
        """The operations that are directly in each scope."""
        found: dict[str, list[Any]] = {}
        for name, operation in self._operations.items():
            found.setdefault(_scope(name), []).append(operation)
        return found

    def _line(self, operation: Any) -> str:
        name = operation.name
        if name not in self._known:
            traceback = operation.traceback  # None where the operation was imported
            line = self._of_tracebacks.get(traceback)
            if line is None:
                line = self._of_tracebacks[traceback] = users_line(traceback or ())
            self._known[name] = line
        return self._known[name]


def users_line(traceback: Sequence[Frame]) -> str:
    """The innermost line of the user's code in a step; what called for the step to be traced is no part."""
    for frame in reversed(traceback):
        if frame.filename.startswith(_TRACING):
            break
        if not is_library(frame.filename):
            return shown_line(frame.filename, frame.lineno)
    return ""


def _scope(name: str) -> str:
    return name.rpartition("/")[0]
