"""Elements that could not be read: found by the gaps that they leave, and told of or raised."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.errors import DamagedData
from memfit.data.stream.options import OnError
from memfit.data.stream.order import Order
from memfit.data.stream.source import Array, Indices, Source, Unreadable

logger = logging.getLogger("memfit")

_LISTED = 10
_AROUND = re.compile(r"\{\{function_node .*?\}\}| ?\[Op:\w+\].*")
_RAISED = re.compile(r"ValueError: (.*)")  # by a function of ours that TensorFlow called


class UnreadableSamples:
    """The elements that one stream has lost so far.

    TensorFlow leaves out what fails to decode without a word. Positions are consecutive, so that a gap
    between them says which elements are missing; these are then read once more to learn why.
    """

    def __init__(
        self, source: Source, decode: Callable[..., Any] | None, order: Order, on_error: OnError
    ) -> None:
        self._source, self._decode, self._order, self._on_error = source, decode, order, on_error
        self._lock = threading.Lock()
        self.skipped: dict[int, Unreadable] = {}
        self._in_epoch = 0

    def read(self, positions: Indices, indices: Indices) -> tuple[Array, ...]:
        """The elements that can be read, their positions first."""
        try:
            return positions, *self._source.read(indices)
        except Unreadable:
            kept, rows = [], []
            for position, index in zip(positions, indices, strict=True):
                try:
                    rows.append(self._source.read(np.array([index], np.int64)))
                    kept.append(position)
                except Unreadable:
                    continue
            return np.array(kept, np.int64), *self._joined(rows)

    def read_all(self, positions: Indices, indices: Indices) -> tuple[Array, ...]:
        """All elements, their positions first; the first that cannot be read is raised."""
        try:
            return positions, *self._source.read(indices)
        except Unreadable:
            raise self._first_damaged(indices) from None

    def _joined(self, rows: list[tuple[Array, ...]]) -> list[Array]:
        if rows:
            return [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        return [spec.empty() for spec in self._source.specs]

    def report(self, positions: Indices, place: Indices) -> tuple[Array, ...]:
        """Positions between begin and end may be missing: raise, or remember them; the end once more."""
        marker, begin, end = place
        missing = self._indices(marker, np.setdiff1d(np.arange(begin, end), positions))
        if len(missing) and self._on_error == "raise":
            raise self._first_damaged(missing)
        for index in missing:
            found = self._why(int(index))
            if found is None:
                raise self._damaged_once(int(index))
            with self._lock:
                self.skipped[int(index)] = found
                self._in_epoch += 1
        is_end = len(positions) == 0
        if is_end and self._in_epoch:
            self._tell()
        return (np.array([end], np.int64),)

    def _indices(self, marker: int, positions: Indices) -> Indices:
        """Which elements should have been at these positions."""
        if len(positions) == 0:
            return positions
        found: Indices = self._order.indices(tf.constant(marker), tf.constant(positions)).numpy()
        return found

    def _first_damaged(self, indices: Indices) -> DamagedData:
        """The error for the first of these that cannot be read or decoded; others went with it."""
        for index in indices:
            found = self._why(int(index))
            if found is not None:
                return DamagedData(found.where, found.reason)
        return self._damaged_once(int(indices[0]))

    def _damaged_once(self, index: int) -> DamagedData:
        return DamagedData(self._source.name(index), "it failed once and works now, as when memory is short")

    def _why(self, index: int) -> Unreadable | None:
        """The error of reading and decoding an element; None where there is none."""
        where = self._source.name(index)
        try:
            parts = self._source.read(np.array([index], np.int64))
            if self._decode is not None:
                self._decode(*(tf.constant(part[0]) for part in parts))
        except Unreadable as error:
            return error
        except (tf.errors.OpError, ValueError) as error:
            return Unreadable(where, first_line(error))
        return None

    def _tell(self) -> None:
        with self._lock:
            count, self._in_epoch = self._in_epoch, 0
            listed = [str(found) for found in list(self.skipped.values())[:_LISTED]]
        more = len(self.skipped) - len(listed)
        lines = [*listed, f"… and {more:,} more"] if more > 0 else listed
        logger.warning(
            "%s of %s elements could not be read and were left out of this epoch:\n  %s",
            f"{count:,}",
            f"{self._order.length:,}",
            "\n  ".join(lines),
        )


def first_line(error: BaseException) -> str:
    """The part of TensorFlow's message that is about the data."""
    text = str(getattr(error, "message", None) or error)
    ours = _RAISED.search(text)
    return (ours[1] if ours else _AROUND.sub("", text).partition("\n")[0]).strip(" .") or type(error).__name__
