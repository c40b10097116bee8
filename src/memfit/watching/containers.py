"""Lists, dictionaries and sets of the user's that hold tensors or tapes, and how they grow."""

from __future__ import annotations

import collections
import itertools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import tensorflow as tf

from memfit.core.user_code import is_library
from memfit.private.tensorflow.eager_tensors import EagerTensor, bytes_of
from memfit.watching.user_lines import locals_of

_CONTAINERS = (list, dict, set, collections.deque)
_MOST_OBJECTS = 2000  # that are looked at in one look
_DEEPEST = 3
_PLAIN = frozenset({bool, int, float, str, type, types.FunctionType, types.ModuleType, types.NoneType})
_users_classes: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_GOES_ON = 0.3  # the share of its life in which a container must have grown, or it was just filled
LEAST_GAINED, LEAST_GROWTHS = 16, 3


@dataclass(frozen=True)
class Name:
    """The name of a container: a variable of a function or module, or an attribute of an object."""

    file: str
    code: CodeType | None  # of the function whose variable it is
    path: tuple[str, ...]  # the variable, and attributes from there on

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass
class Growth:
    """The growth of a container since it was first seen, or since it was last emptied."""

    kind: str
    length: int
    each_bytes: int
    container_id: int
    gained: int = 0
    growths: int = 0
    first_seconds: float = 0.0
    last_seconds: float = 0.0
    seen_seconds: float = 0.0
    highest_before: int = 0  # before it was last emptied

    def lasts(self, patience_seconds: float) -> bool:
        """Whether it grows all the time, and not just while it was filled."""
        if self.gained < LEAST_GAINED or self.growths < LEAST_GROWTHS:
            return False
        lasted, life = self.last_seconds - self.first_seconds, self.seen_seconds - self.first_seconds
        return lasted >= max(patience_seconds, _GOES_ON * life) and self.length > 2 * self.highest_before


@dataclass
class Containers:
    """The growth of each known container, by name."""

    known: dict[Name, Growth] = field(default_factory=dict)
    _sizes: dict[Name, int] = field(default_factory=dict)  # of those that hold nothing of interest so far

    def look(self, frames: Iterable[FrameType], now: float) -> None:
        """See how long they are."""
        for name, container in itertools.islice(_named(frames), _MOST_OBJECTS):
            length = len(container)
            growth = self.known.get(name)
            if growth is None:
                self._meet(name, container, length, now)
                continue
            growth.seen_seconds = now
            if growth.container_id != id(container) or length < growth.length:
                growth.highest_before = max(growth.highest_before, growth.length)
                growth.container_id, growth.gained, growth.growths = id(container), 0, 0
                growth.length, growth.first_seconds = length, now
            elif length > growth.length:
                growth.gained += length - growth.length
                growth.growths += 1
                growth.length, growth.last_seconds = length, now

    def _meet(self, name: Name, container: Any, length: int, now: float) -> None:
        if self._sizes.get(name) == length:
            return  # nothing was added since it held nothing of interest
        self._sizes[name] = length
        kind, each_bytes = _content(container) if length else ("", 0)
        if kind:
            self.known[name] = Growth(kind, length, each_bytes, id(container), first_seconds=now)


def _named(frames: Iterable[FrameType]) -> Iterator[tuple[Name, Any]]:
    """The containers that the user's functions and modules have, by name, each once."""
    seen: set[int] = set()
    for frame in frames:
        code = frame.f_code
        is_module = code.co_name == "<module>"
        if not is_module:
            yield from _inside(Name(code.co_filename, code, ()), locals_of(frame), seen, 0)
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield from _inside(Name(code.co_filename, None, ()), dict(frame.f_globals), seen, 0)


def _inside(name: Name, values: dict[str, Any], seen: set[int], depth: int) -> Iterator[tuple[Name, Any]]:
    for key, value in values.items():
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue  # nearly always, so that it comes first
        is_container = issubclass(kind, _CONTAINERS)
        if not (is_container or _is_users_class(kind)) or not isinstance(key, str) or key.startswith("__"):
            continue
        seen.add(id(value))
        below = Name(name.file, name.code, (*name.path, key))
        if is_container and getattr(value, "maxlen", None) is None:  # a deque that is full does not grow
            yield below, value
        if depth < _DEEPEST and (kind is dict or not is_container):
            yield from _inside(below, dict(value if is_container else vars(value)), seen, depth + 1)


def _is_users_class(kind: type) -> bool:
    """Whether objects of a class have values of their own, and the user wrote it, or it just holds values."""
    known = _users_classes.get(kind)
    if known is None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        is_users = kind.__module__ == "__main__" or (file is not None and not is_library(file))
        has_values = bool(kind.__dictoffset__) and not issubclass(kind, type | types.ModuleType)
        known = _users_classes[kind] = kind is types.SimpleNamespace or (is_users and has_values)
    return known


def _content(container: Any) -> tuple[str, int]:
    """Whether the newest element is or holds tensors or tapes, and the bytes of its tensors."""
    newest = _newest(container)
    found = list(_leaves(newest, 0))
    if any(isinstance(leaf, tf.GradientTape) for leaf in found):
        return "tapes", 0
    tensors = [leaf for leaf in found if isinstance(leaf, EagerTensor)]
    return ("tensors", sum(map(bytes_of, tensors))) if tensors else ("", 0)


def _newest(container: Any) -> Any:
    try:
        if isinstance(container, dict):
            return next(reversed(container.values()))
        if isinstance(container, set):
            return next(iter(container))
        return container[-1]
    except (IndexError, StopIteration, RuntimeError):  # another thread was quicker
        return None


def _leaves(thing: Any, depth: int) -> Iterator[Any]:
    if isinstance(thing, tuple | list) and depth < 2:
        for item in thing[:16]:
            yield from _leaves(item, depth + 1)
    elif isinstance(thing, dict) and depth < 2:
        for item in list(thing.values())[:16]:
            yield from _leaves(item, depth + 1)
    else:
        yield thing
