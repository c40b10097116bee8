"""Elements that are reached by index, read by Python a block at a time inside a tf.data pipeline."""

from __future__ import annotations

import collections
import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_ALIGNMENT = 64


class Spec(NamedTuple):
    """Type and shape of one part of an element; texts and encoded bytes are tf.string."""

    dtype: tf.DType
    shape: tuple[int | None, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of one part; 0 for texts and open dimensions, of which nothing is known."""
        if self.dtype == tf.string or None in self.shape:
            return 0
        return int(self.dtype.size * np.prod([int(size or 0) for size in self.shape], dtype=np.int64))

    def blank(self, count: int) -> Array:
        """So many of them as `Source.read` would give them, with nothing in them."""
        shape = (count, *(size or 0 for size in self.shape))
        if self.dtype == tf.string:
            return np.full(shape, b"", object)
        return np.zeros(shape, self.dtype.as_numpy_dtype)

    def empty(self) -> Array:
        """None of them, as `Source.read` would give it."""
        return self.blank(0)


class Source(Protocol):
    """A collection of elements that can be read by index.

    `read` takes indices and gives, for each part of `specs`, an array with a row for each index, in their
    order. It may be called from several threads at once, must not keep what it returns, and depends on
    nothing but the indices. An element that cannot be read raises `Unreadable`.
    """

    length: int
    specs: tuple[Spec, ...]

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """The elements with these indices."""

    def name(self, index: int) -> str:
        """The name of an element for an error message."""


class Unreadable(Exception):
    """An element that cannot be read: where it is, and why."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class Rooms:
    """Memory for rows, used again once the rows in it are no longer referenced.

    To get new memory from the system takes as long as to fill it with rows. They begin where TensorFlow wants
    arrays to begin, so that it takes them as they are.
    """

    def __init__(self) -> None:
        self._free: collections.deque[bytearray] = collections.deque()

    def rows(self, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Room for so many rows."""
        size = dtype.itemsize * count * int(np.prod(shape, dtype=np.int64))
        room = self._room(size + _ALIGNMENT)
        begin = -np.frombuffer(room, np.uint8).ctypes.data % _ALIGNMENT
        # Views of an array keep it, and not what it lies in, since that is no array.
        rows: Array = np.ndarray((count, *shape), dtype, room, begin)
        weakref.finalize(rows, self._free.append, room).atexit = False
        return rows

    def _room(self, size: int) -> bytearray:
        try:
            room = self._free.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


Called = Callable[..., tuple[Array, ...]]

_CALLED: dict[int, Called] = {}
_NUMBERS = itertools.count(1)


def register(function: Called) -> int:
    """A number under which graphs call a function, until `release_with` lets go of it."""
    number = next(_NUMBERS)
    _CALLED[number] = function
    return number


def release_with(dataset: Any, number: int) -> None:
    """Forget what was registered once a dataset is gone; what is built on a dataset keeps it."""
    weakref.finalize(dataset, _CALLED.pop, number, None)


def call(number: int, specs: tuple[Spec, ...], *arguments: Any) -> tuple[Any, ...]:
    """In a graph: what was registered under a number, called with tensors; each result has rows."""
    types = tuple(spec.dtype for spec in specs)
    given = tuple((argument.dtype, argument.shape.rank) for argument in arguments)
    parts = _caller(types, given)(tf.constant(number, tf.int64), *arguments)
    for part, spec in zip(parts, specs, strict=True):
        part.set_shape((None, *spec.shape))
    return tuple(parts)


@functools.cache
def _caller(types: tuple[tf.DType, ...], given: tuple[tuple[tf.DType, int], ...]) -> Any:
    # TensorFlow keeps every Python function that a graph calls for good. So all datasets share one of a few,
    # and nothing that belongs to a dataset is ever kept.
    def caller(number: Any, *arguments: Any) -> Any:
        return tf.numpy_function(_call, [number, *arguments], types, stateful=False)

    specs = [tf.TensorSpec((None,) * rank, dtype) for dtype, rank in given]
    with tf.init_scope():
        return tf.function(caller).get_concrete_function(tf.TensorSpec((), tf.int64), *specs)


def _call(number: Any, *arguments: Any) -> Any:
    parts = _CALLED[int(number)](*arguments)
    return parts if len(parts) > 1 else parts[0]
