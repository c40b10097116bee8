"""Objects as they were, whatever is built on them in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from memfit.models import internals

_DEPTH = 6  # of containers in containers


class Snapshot:
    """The attributes of objects, with what the lists, dicts and sets among them hold."""

    def __init__(self, owners: Iterable[Any]) -> None:
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        for owner in owners:
            self._note_attributes(owner, _DEPTH)
            tracker = internals.tracker_of(owner)
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
    """Take back whatever happens to a model, its layers, optimizer, losses and metrics."""
    optimizer, loss, metrics, _ = internals.compiled_parts(model)
    parts = [*internals.with_inner(optimizer), loss, metrics]
    snapshot = Snapshot([*internals.all_layers(model), *(part for part in parts if part is not None)])
    try:
        yield
    finally:
        snapshot.restore()
