"""Objects as they were, whatever is built on them in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from memfit.private.keras.global_state import scope_in_force
from memfit.private.keras.layers import layers_and_self, tracker_of
from memfit.private.keras.trainer import compiled_parts, with_inner
from memfit.private.tensorflow.variables import backing_variable

T = TypeVar("T")

_DEPTH = 6  # of containers in containers


class Snapshot:
    """The attributes of objects, with what the lists, dicts and sets among them hold."""

    def __init__(self, owners: Iterable[Any]) -> None:
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        for owner in owners:
            self._note_attributes(owner, _DEPTH)
            tracker = tracker_of(owner)
            if tracker is not None:
                self._note_attributes(tracker, _DEPTH)

    def restore(self) -> None:
        """Put everything back, past whatever subclasses and proxies do when something is added."""
        for owner, attributes in self._attributes:
            vars(owner).clear()
            vars(owner).update(attributes)
        for container, items in self._contents.values():
            kind = type(items)
            kind.clear(container)
            if kind is list:
                list.extend(container, items)
            else:
                kind.update(container, items)

    def _note_attributes(self, owner: Any, depth: int) -> None:
        attributes = dict(vars(owner))
        self._attributes.append((owner, attributes))
        for value in attributes.values():
            self._note(value, depth)

    def _note(self, value: Any, depth: int) -> None:
        value = getattr(value, "__wrapped__", value) if isinstance(value, dict) else value
        kind = next((kind for kind in (list, dict, set) if isinstance(value, kind)), None)
        if kind is None or id(value) in self._contents or depth == 0:
            return
        items: Any = kind(value)
        self._contents[id(value)] = (value, items)
        if hasattr(value, "__dict__"):  # TensorFlow's lists hold their items in an attribute
            self._note_attributes(value, depth - 1)
        for item in items.values() if isinstance(items, dict) else items:
            self._note(item, depth - 1)


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Take back whatever happens to a model, its layers, optimizer, losses and metrics, and all draws."""
    optimizer, loss, metrics, _ = compiled_parts(model)
    parts = [*with_inner(optimizer), loss, metrics]
    snapshot = Snapshot([*layers_and_self(model), *(part for part in parts if part is not None)])
    try:
        with draws_put_back():
            yield
    finally:
        snapshot.restore()


class TracedDraws:
    """The numbers that a step draws from Python and NumPy while it is traced, as some of Keras' layers do.

    Plain Keras traces a step once, and calls a model that is not built a few times before. However often the
    step is traced here, what runs has drawn the same.
    """

    def __init__(self) -> None:
        self.thrown_away = 0  # calls of plain Keras before the one that it runs
        self._before: _Draws | None = None

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Let a trace draw the same again; what runs eagerly draws on, as it does in plain Keras."""
        if tf.executing_eagerly() or _DrawnMeanwhile.by_data:
            yield
        elif self._before is not None:
            with draws_put_back():
                _set_draws(self._before)
                yield
        else:
            before = _draws()
            yield
            if self.thrown_away == 0 or _are_same(before, _draws()):
                self._before = before

    def as_in_keras(self, trace: Callable[[], T]) -> T:
        """A trace that has drawn what the one that plain Keras runs has drawn."""
        made = trace()
        while self._before is None and self.thrown_away:
            self.thrown_away -= 1
            made = trace()
        return made


class _DrawnMeanwhile:
    """Whose draws may not be put back, since a thread that reads data goes on drawing meanwhile."""

    by_data = False
    builds = False  # a model draws the seeds of its weights from Python when it is built


@contextmanager
def data_draws_meanwhile(model: Any) -> Iterator[None]:
    """While data is read by Python code in a thread, the numbers that it draws are not drawn again.

    What tracing draws is drawn on then, which only few layers do.
    """
    before = (_DrawnMeanwhile.by_data, _DrawnMeanwhile.builds)
    _DrawnMeanwhile.by_data, _DrawnMeanwhile.builds = True, not getattr(model, "built", False)
    try:
        yield
    finally:
        _DrawnMeanwhile.by_data, _DrawnMeanwhile.builds = before


@contextmanager
def draws_put_back() -> Iterator[None]:
    """Let what is drawn from Python and NumPy in between be drawn again."""
    before = _draws()
    try:
        yield
    finally:
        if not _DrawnMeanwhile.by_data:
            _set_draws(before)
        elif _DrawnMeanwhile.builds:
            random.setstate(before[0])


_Draws = tuple[Any, Any]


def _draws() -> _Draws:
    return random.getstate(), np.random.get_state()


def _are_same(one: _Draws, other: _Draws) -> bool:
    return one[0] == other[0] and repr(one[1]) == repr(other[1])


def _set_draws(draws: _Draws) -> None:
    random.setstate(draws[0])
    np.random.set_state(draws[1])


class Recording(keras.StatelessScope):  # type: ignore[misc]  # Keras is untyped
    """A scope that remembers the value of every variable that is read, and every assignment.

    Weights are read as they are, so that a tape sees them; they do not change before the update.
    """

    def __init__(self, values: dict[int, Any] | None = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.seen: dict[int, Any] = dict(values or {})
        self.updates: dict[int, tuple[Any, Any]] = {}
        self.state_mapping.update(self.seen)
        self._outer = scope_in_force()
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def get_current_value(self, variable: Any) -> Any:
        """The value that was assigned here, else the value when the variable was first read."""
        key = id(variable)
        if key not in self.state_mapping:
            value = backing_variable(variable)
            if self._outer is not None:
                value = self._outer.get_current_value(variable)
            if isinstance(value, tf.Variable) and variable.trainable:
                return value
            self.state_mapping[key] = self.seen[key] = self._read(value)
        return self.state_mapping[key]

    def _read(self, value: Any) -> Any:
        if self._graph is None or not isinstance(value, tf.Variable):
            return tf.convert_to_tensor(value)
        with self._graph.as_default():  # not in the body of a loop, which has a graph of its own
            return value.read_value()

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take an assignment; it is made outside when the segment is through."""
        variable, value = update
        self.state_mapping[id(variable)] = value
        self.updates[id(variable)] = (variable, value)
