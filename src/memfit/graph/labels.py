"""The labels of a program's operations and variables: layers, lines and roles."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from memfit.core.records import VariableRole
from memfit.core.user_code import is_library, shown_line
from memfit.private.keras.layers import CalledLayers

_BACKWARD = "gradient_tape/"


@dataclass(frozen=True)
class Labels:
    """Names that tell layers, the backward pass and the update apart, and what variables are for."""

    layers: CalledLayers = field(default_factory=CalledLayers)
    update: str | None = None  # the scope that the optimizer computes in
    roles: dict[int, VariableRole] = field(default_factory=dict)  # of tf.Variables, by identity
    paths: dict[int, str] = field(default_factory=dict)  # likewise, as Keras names them
    present: list[Any] = field(default_factory=list)  # variables that are in memory, whatever a step does

    def in_order_of_creation(self, variables: Iterable[Any]) -> list[Any]:
        """These and what is present, without repetition: of the model, then of the optimizer, then others."""
        order = {identity: number for number, identity in enumerate(self.roles)}
        distinct = {id(variable): variable for variable in (*self.present, *variables)}
        return sorted(distinct.values(), key=lambda variable: order.get(id(variable), len(order)))

    def layer_of(self, name: str) -> str:
        """The layer that an operation belongs to, by the innermost scope in its name; "" for none."""
        scope = name.removeprefix(_BACKWARD)
        while "/" in scope:
            scope = scope.rpartition("/")[0]
            if scope in self.layers.by_scope:
                return self.layers.by_scope[scope]
        return ""

    def is_backward(self, name: str) -> bool:
        """Whether an operation belongs to the backward pass or to the update."""
        return _BACKWARD in name or (self.update is not None and name.startswith(f"{self.update}/"))


_TRACING = os.fspath(Path(__file__).parent) + os.sep


class StackFrame(Protocol):
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


def users_line(traceback: Sequence[StackFrame]) -> str:
    """The innermost line of the user's code in a step; what called for the step to be traced is no part."""
    for frame in reversed(traceback):
        if frame.filename.startswith(_TRACING):
            break
        if not is_library(frame.filename):
            return shown_line(frame.filename, frame.lineno)
    return ""


def _scope(name: str) -> str:
    return name.rpartition("/")[0]
