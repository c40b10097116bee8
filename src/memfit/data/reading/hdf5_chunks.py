"""Rows of chunked HDF5 datasets, read from the mapped file without the HDF5 library."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from memfit.data.reading.columns import check_rows
from memfit.data.reading.row_groups import Group, GroupedColumn
from memfit.data.stream.source import Array, Indices, Rooms, Unreadable

_DEFLATE, _SHUFFLE = 1, 2  # as HDF5 numbers its filters


class Chunks(NamedTuple):
    """The offsets and sizes of a dataset's chunks in its file, and the filters that they were made with."""

    shape: tuple[int, ...]  # of a chunk
    offsets: Array  # by the number of the chunk along each dimension; -1 for those that were never written
    sizes: Array
    skipped: Array  # filters that a chunk went without, a bit each
    filters: tuple[int, ...]  # in the order in which they were applied

    @property
    def held_bytes(self) -> int:
        """The bytes of the table in memory."""
        return int(self.offsets.nbytes + self.sizes.nbytes + self.skipped.nbytes)

    @property
    def has_whole_rows(self) -> bool:
        """Whether no row is cut into pieces."""
        return len(self.offsets) == int(self.offsets.size)


def find_chunks(dataset: Any) -> Chunks | None:
    """The chunks of a dataset; None if they cannot be read without the library."""
    properties = dataset.id.get_create_plist()
    filters = tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))
    # To look up one chunk takes as long as there are chunks; older libraries cannot list them all at once.
    if not set(filters) <= {_DEFLATE, _SHUFFLE} or not hasattr(dataset.id, "chunk_iter"):
        return None
    grid = tuple(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
    offsets, sizes, skipped = np.full(grid, -1, np.int64), np.zeros(grid, np.int64), np.zeros(grid, np.uint32)

    def note(chunk: Any) -> None:
        place = tuple(at // step for at, step in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        offsets[place], sizes[place], skipped[place] = chunk.byte_offset, chunk.size, chunk.filter_mask

    dataset.id.chunk_iter(note)
    return Chunks(dataset.chunks, offsets, sizes, skipped, filters)


class PlainColumn:
    """Rows of chunks that are stored as they are, found by where they begin."""

    def __init__(self, dataset: Any, chunks: Chunks, file: Array, where: str) -> None:
        self.dtype, self.shape = check_rows(dataset.dtype, dataset.shape, where)
        self._stored, self._fill = dataset.dtype, dataset.fillvalue
        self._chunk_size, self._offsets = chunks.shape[0], chunks.offsets.reshape(-1)
        self._file, self._where, self._rooms = file, where, Rooms()
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def held_bytes(self) -> int:
        """The bytes of the offsets in memory."""
        return int(self._offsets.nbytes)

    def take(self, indices: Indices) -> Array:
        """The rows with these indices."""
        rows = self._rooms.rows(len(indices), self.shape[1:], self._stored)
        flat = rows.reshape(len(indices), -1).view(np.uint8)
        chunks, places = np.divmod(indices, self._chunk_size)
        offsets = self._offsets[chunks]
        begins = offsets + places * self._row_bytes
        rows[offsets < 0] = self._fill
        for row in np.flatnonzero(offsets >= 0).tolist():
            found = self._file[begins[row] : begins[row] + self._row_bytes]
            if len(found) < self._row_bytes:
                raise Unreadable(self.name(int(indices[row])), "it is beyond the end of the file")
            flat[row] = found
        return rows.astype(self.dtype, copy=False)

    def name(self, index: int) -> str:
        """Its number, the dataset and the file."""
        return f"row {index:,} of {self._where}"


class ChunkedColumn(GroupedColumn):
    """Rows of chunks that are compressed, or that hold pieces of rows."""

    def __init__(self, dataset: Any, chunks: Chunks, file: Array, where: str) -> None:
        dtype, shape = check_rows(dataset.dtype, dataset.shape, where)
        sizes = np.full(chunks.offsets.shape[0], chunks.shape[0], np.int64)
        sizes[-1] = shape[0] - int(sizes[:-1].sum())
        super().__init__(where, dtype, shape[1:], sizes)
        self._chunks, self._file = chunks, file
        self._stored, self._fill = dataset.dtype, dataset.fillvalue
        self._chunk_bytes = dtype.itemsize * int(np.prod(chunks.shape, dtype=np.int64))

    @property
    def held_bytes(self) -> int:
        """The bytes kept in memory to find groups, the table of chunks included."""
        return super().held_bytes + self._chunks.held_bytes

    @property
    def working_bytes(self) -> int:
        """A group, and a chunk before and after each filter."""
        return self.group_bytes + 3 * self._chunk_bytes

    def load(self, number: int) -> Group:
        """The rows of a chunk, or of all the chunks that hold pieces of them."""
        size = int(self.sizes[number])
        if self._chunks.has_whole_rows and self._chunks.shape[1:] == self.shape[1:]:
            place = (number, *(0 for _ in self.shape[1:]))
            return Group(self._chunk(place)[:size].astype(self.dtype, copy=False))
        rows = np.empty((size, *self.shape[1:]), self.dtype)
        for place, target in self._pieces(number):
            part = rows[target]
            part[...] = self._chunk(place)[tuple(slice(length) for length in part.shape)]
        return Group(rows)

    def _pieces(self, number: int) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """The chunks of a group, and what they hold of its rows."""
        steps = self._chunks.shape[1:]
        for place in itertools.product(*(range(count) for count in self._chunks.offsets.shape[1:])):
            target = (slice(at * step, (at + 1) * step) for at, step in zip(place, steps, strict=True))
            yield (number, *place), (slice(None), *target)

    def _chunk(self, place: tuple[int, ...]) -> Array:
        """A chunk as it was before it was filtered."""
        begin, size = int(self._chunks.offsets[place]), int(self._chunks.sizes[place])
        if begin < 0:
            return np.full(self._chunks.shape, self._fill, self._stored)
        data: Any = self._file[begin : begin + size]
        if len(data) < size:
            raise ValueError("its chunk is beyond the end of the file")
        for number, kind in reversed(list(enumerate(self._chunks.filters))):
            if not int(self._chunks.skipped[place]) >> number & 1:
                data = self._inflated(data) if kind == _DEFLATE else self._unshuffled(data)
        if len(data) != self._chunk_bytes:
            raise ValueError(f"its chunk has {len(data):,} bytes instead of {self._chunk_bytes:,}")
        return np.frombuffer(data, self._stored).reshape(self._chunks.shape)

    def _inflated(self, data: Any) -> bytes:
        try:
            return zlib.decompress(data, bufsize=self._chunk_bytes)
        except zlib.error as error:
            raise ValueError(f"its chunk is damaged ({error})") from error

    def _unshuffled(self, data: Any) -> Array:
        """First bytes of all numbers, then second bytes, and so on -> numbers."""
        planes = np.frombuffer(data, np.uint8).reshape(self.dtype.itemsize, -1)
        return np.ascontiguousarray(planes.T).reshape(-1)
