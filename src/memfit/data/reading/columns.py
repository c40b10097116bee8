"""Rows of numbers that are reached by index: arrays, mapped files, and whatever can be sliced like them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from memfit.core.errors import InvalidStream, NoData
from memfit.data.reading.row_groups import GroupedColumn, arrange
from memfit.data.stream.budget import SampleSizes
from memfit.data.stream.dataset import open_stream
from memfit.data.stream.definition import Stream
from memfit.data.stream.options import Options
from memfit.data.stream.source import Array, Indices, Rooms, Spec, Unreadable


class Column(Protocol):
    """Rows of one type and shape."""

    dtype: np.dtype[Any]  # in this machine's byte order
    shape: tuple[int, ...]  # rows first

    @property
    def held_bytes(self) -> int:
        """The bytes kept in memory to find rows."""

    def take(self, indices: Indices) -> Array:
        """The rows with these indices, in their order."""

    def name(self, index: int) -> str:
        """The name of a row for an error message."""


class MappedColumn:
    """An array whose rows are copied one block at a time: on disk and mapped, or in memory already."""

    held_bytes = 0

    def __init__(self, array: Array, where: str) -> None:
        self.dtype, self.shape = check_rows(array.dtype, array.shape, where)
        self._array, self._where = np.asarray(array), where
        self._rooms = Rooms()

    def take(self, indices: Indices) -> Array:
        """The rows with these indices."""
        rows = self._rooms.rows(len(indices), self.shape[1:], self._array.dtype)
        # Any other mode than "raise" writes into the rows at once; TensorFlow's indices are right.
        np.take(self._array, indices, axis=0, out=rows, mode="clip")
        return rows.astype(self.dtype, copy=False)

    def name(self, index: int) -> str:
        """Its number and the array it is in."""
        return f"row {index:,} of {self._where}"


class SlicedColumn:
    """Rows of any object that can be sliced, as the arrays of zarr and the datasets of h5py."""

    held_bytes = 0

    def __init__(self, array: Any, where: str) -> None:
        self.dtype, self.shape = check_rows(array.dtype, array.shape, where)
        self._array, self._where = array, where
        self._lock = threading.Lock()  # not all such objects may be read from several threads
        self._takes_indices = self._can_take_indices()

    def _can_take_indices(self) -> bool:
        try:
            found: Any = np.shape(self._array[np.unique([0, self.shape[0] - 1])])
        except (AttributeError, IndexError, NotImplementedError, OSError, TypeError, ValueError):
            return False
        return bool(found == (min(2, self.shape[0]), *self.shape[1:]))

    def take(self, indices: Indices) -> Array:
        """The rows with these indices, each read once and in the order in which they lie."""
        sorted_indices, places = np.unique(indices, return_inverse=True)
        try:
            with self._lock:
                rows = self._rows(sorted_indices)
        except (OSError, RuntimeError, ValueError) as error:
            raise Unreadable(self.name(int(indices[0])), str(error)) from error
        return np.take(np.asarray(rows, self.dtype), places, axis=0)

    def _rows(self, indices: Indices) -> Array:
        if self._takes_indices:
            return np.asarray(self._array[indices])
        return np.concatenate([np.asarray(self._array[index : index + 1]) for index in indices.tolist()])

    def name(self, index: int) -> str:
        """Its number and the array it is in."""
        return f"row {index:,} of {self._where}"


def check_rows(dtype: Any, shape: Sequence[int], where: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type, in this machine's byte order, and the shape of an array, if it has rows of numbers."""
    try:
        found = np.dtype(dtype)
        is_number = found.kind in "biufc" and tf.as_dtype(found.newbyteorder("=")) is not None
    except TypeError:
        is_number = False
    if not is_number:
        raise InvalidStream(
            f"{where} does not hold numbers that TensorFlow has.",
            expected="bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 or complex128",
            received=_described(dtype),
            suggestion='.astype("float32") before it is saved',
        )
    if len(shape) == 0:
        raise InvalidStream(
            f"{where} is a single number.",
            expected="an array with a row for each element",
            received=f"shape {tuple(shape)}",
            suggestion="an array of at least one dimension",
        )
    if 0 in shape:
        raise NoData(
            where, expected="at least one row", found=f"shape {tuple(shape)}", suggestion="an array with rows"
        )
    return found.newbyteorder("="), tuple(int(size) for size in shape)


def _described(dtype: Any) -> str:
    if getattr(dtype, "hasobject", False):
        return f"{dtype}: Python objects, or values of different lengths"
    return str(dtype)


class Columns:
    """Inputs and targets side by side."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.length = columns[0].shape[0]
        self.specs = tuple(Spec(tf.as_dtype(column.dtype), column.shape[1:]) for column in columns)

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """The rows of all columns."""
        return tuple(column.take(indices) for column in self._columns)

    def name(self, index: int) -> str:
        """The row of the inputs."""
        return self._columns[0].name(index)


def open_columns(x: Column, y: Column | None, options: Options, *, is_own_target: bool) -> Any:
    """The dataset of inputs, with targets if there are any."""
    columns = [x] if y is None else [x, y]
    _check_lengths(columns)
    source = Columns(columns)
    grouped = [column for column in columns if isinstance(column, GroupedColumn)]
    kept_bytes, groups = arrange(x, grouped, options)
    row_bytes = sum(spec.size_bytes for spec in source.specs)
    sizes = SampleSizes(
        held_bytes=sum(column.held_bytes for column in columns),
        raw_bytes=row_bytes,
        working_bytes=max((column.working_bytes for column in grouped), default=0),
        element_bytes=row_bytes,
        kept_bytes=kept_bytes,
    )
    return open_stream(
        Stream(
            source=source,
            options=options,
            sizes=sizes,
            decode=None,
            augment=None,
            decoded=source.specs,
            finish=(lambda rows: (rows, rows)) if is_own_target else _as_given,
            groups=groups,
        )
    )


def _as_given(*parts: Any) -> Any:
    return parts if len(parts) > 1 else parts[0]


def _check_lengths(columns: Sequence[Column]) -> None:
    lengths = [column.shape[0] for column in columns]
    if len(set(lengths)) > 1:
        raise InvalidStream(
            "inputs and targets have different numbers of rows.",
            expected=f"{lengths[0]:,} rows of y, as many as x has",
            received=f"{lengths[1]:,} rows of y",
            suggestion="the y that belongs to this x",
        )
