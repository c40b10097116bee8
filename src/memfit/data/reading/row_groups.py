"""Rows that can only be read in groups, as from the compressed chunks of a file; the last groups are kept."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from memfit.data.stream.budget import OVERHEAD_BYTES
from memfit.data.stream.options import Options
from memfit.data.stream.order import Groups
from memfit.data.stream.source import Array, Indices, Rooms, Unreadable

logger = logging.getLogger("memfit")

_SHARE = 4  # one part in so many of the RAM beyond TensorFlow's own is for groups that are kept
_SMALL = 8  # targets that take less than one part in so many of that are kept whole
_MOST_MIXED = 64
_MOST_IN_A_ROW = 16


class Group(NamedTuple):
    """The rows of a group, and which of them have no value."""

    values: Array
    is_missing: Array | None = None


class KeptGroups:
    """The groups that were used last. One thread reads a group, others that need it wait."""

    def __init__(self) -> None:
        self._groups: OrderedDict[int, Future[Group]] = OrderedDict()
        self._lock = threading.Lock()
        self.most = 0

    def get(self, number: int, load: Callable[[int], Group]) -> Group:
        """A group, loaded if it is not kept."""
        with self._lock:
            future = self._groups.get(number)
            is_ours = future is None
            if future is None:
                future = self._groups[number] = Future()
            self._groups.move_to_end(number)
            while len(self._groups) > self.most:
                self._groups.popitem(last=False)
        if is_ours:
            self._load(future, number, load)
        return future.result()

    def _load(self, future: Future[Group], number: int, load: Callable[[int], Group]) -> None:
        try:
            future.set_result(load(number))
        except BaseException as error:
            with self._lock:
                self._groups.pop(number, None)
            future.set_exception(error)
            raise


class GroupedColumn(ABC):
    """Rows that lie in groups of given sizes, one group after the other."""

    def __init__(self, where: str, dtype: np.dtype[Any], row_shape: tuple[int, ...], sizes: Indices) -> None:
        self.where, self.dtype, self.sizes = where, dtype, sizes
        self._ends = np.cumsum(sizes)
        self.shape = (int(self._ends[-1]), *row_shape)
        self._kept, self._rooms = KeptGroups(), Rooms()

    @abstractmethod
    def load(self, number: int) -> Group:
        """Read a group; OSError and ValueError say why it cannot be read."""

    def name(self, index: int) -> str:
        """The name of a row for an error message."""
        return f"row {index:,} of {self.where}"

    @property
    @abstractmethod
    def working_bytes(self) -> int:
        """The bytes that reading a group takes, the group included."""

    @property
    def held_bytes(self) -> int:
        """The bytes kept in memory to find groups."""
        return self.sizes.nbytes + self._ends.nbytes

    @property
    def group_size(self) -> int:
        """The number of rows of the largest group."""
        return int(self.sizes.max())

    @property
    def group_bytes(self) -> int:
        """The bytes of the largest group."""
        return self.group_size * self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def total_bytes(self) -> int:
        """The bytes of all groups, each counted like the largest."""
        return self.group_bytes * len(self.sizes)

    def keep(self, count: int) -> int:
        """Keep so many groups from now on, or all if there are fewer; how many bytes these take."""
        self._kept.most = min(count, len(self.sizes))
        return self._kept.most * self.group_bytes

    def number(self, index: int) -> int:
        """The group that a row is in."""
        return int(np.searchsorted(self._ends, index, side="right"))

    def begin(self, number: int) -> int:
        """The first row of a group."""
        return int(self._ends[number] - self.sizes[number])

    def take(self, indices: Indices) -> Array:
        """The rows with these indices; each group is read once."""
        rows = self._rooms.rows(len(indices), self.shape[1:], self.dtype)
        numbers = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            rows[places] = self._of_group(int(numbers[places[0]]), indices[places])
        return rows

    def _of_group(self, number: int, indices: Indices) -> Array:
        try:
            group = self._kept.get(number, self.load)
        except (OSError, ValueError) as error:
            raise Unreadable(self.name(int(indices[0])), str(error)) from error
        rows = indices - self.begin(number)
        if group.is_missing is not None and group.is_missing[rows].any():
            first = int(indices[np.argmax(group.is_missing[rows])])
            raise Unreadable(self.name(first), "a value is missing (null)")
        return np.take(group.values, rows, axis=0)


def arrange(inputs: object, columns: Sequence[GroupedColumn], options: Options) -> tuple[int, Groups | None]:
    """Let columns keep groups within their share of the RAM; what these take, and how groups are mixed."""
    several = [column for column in columns if column.group_size > 1]  # of one row, nothing else follows
    share_bytes = max(0, options.ram_bytes - OVERHEAD_BYTES) // _SHARE
    small = [
        column for column in several if column is not inputs and column.total_bytes <= share_bytes // _SMALL
    ]
    large = [column for column in several if column not in small]
    kept_bytes = sum(column.keep(len(column.sizes)) for column in small)
    left_bytes = share_bytes - kept_bytes
    if not large:
        return kept_bytes, None
    if options.shuffle is True:
        return kept_bytes + sum(_keep_any(column, left_bytes // len(large)) for column in large), None
    needed = [_needed(column, large[0]) for column in large]
    together_bytes = sum(count * column.group_bytes for count, column in zip(needed, large, strict=True))
    most = _MOST_MIXED if options.shuffle else _MOST_IN_A_ROW
    # Blocks are read ahead: while some still need one window, others begin the next.
    window = max(1, min(most, left_bytes // together_bytes // 2))
    kept_bytes += sum(column.keep(2 * window * count) for count, column in zip(needed, large, strict=True))
    return kept_bytes, Groups(large[0].sizes, window)


def _needed(column: GroupedColumn, leading: GroupedColumn) -> int:
    """The number of groups of a column that hold the rows of one group of the leading column."""
    if np.array_equal(column.sizes, leading.sizes):
        return 1
    return -(-leading.group_size // column.group_size) + 1


def _keep_any(column: GroupedColumn, left_bytes: int) -> int:
    """Keep as many groups as there is room for, since any may be the next; what these take."""
    count = min(len(column.sizes), left_bytes // column.group_bytes)
    if count < len(column.sizes):
        logger.warning(
            "rows of %s lie in groups of %s, which are read whole, and ram has room for %s of %s groups. "
            'Try: shuffle="groups", which reads each group once an epoch',
            column.where,
            f"{column.group_size:,}",
            f"{count:,}",
            f"{len(column.sizes):,}",
        )
    return column.keep(count)
