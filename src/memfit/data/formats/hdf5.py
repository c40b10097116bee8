"""`from_hdf5`: datasets of an HDF5 file, of any size, as batches."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np

from memfit.core.errors import InvalidStream, NoData
from memfit.data.reading.columns import Column, MappedColumn, SlicedColumn, check_rows, open_columns
from memfit.data.reading.hdf5_chunks import ChunkedColumn, PlainColumn, find_chunks
from memfit.data.reading.row_groups import Group, GroupedColumn
from memfit.data.stream.options import StreamOptions, read_options
from memfit.data.stream.source import Unreadable

_LISTED = 20


def from_hdf5(
    path: str | os.PathLike[str], *, x: str = "x", y: str | None = None, **options: Unpack[StreamOptions]
) -> Any:
    """Rows of datasets of an HDF5 file as a `tf.data.Dataset` that stays within `ram`.

    x, y: names of the datasets of inputs and targets, such as "train/images"; y="input" if the input is its
        own target, as for an autoencoder.
    shuffle: compressed chunks of several rows are read whole, for each row anew if ram cannot keep them;
        shuffle="groups" mixes the rows of some chunks at a time and reads each chunk once.

        dataset = memfit.data.from_hdf5("photos.h5", x="images", y="labels", ram="512MiB")
        model.fit(dataset)
    """
    settings = read_options(**options)
    is_own_target = y == "input"
    with _opened(Path(path)) as file:
        inputs = _column(file, x)
        targets = None if y is None or is_own_target else _column(file, y)
    return open_columns(inputs, targets, settings, is_own_target=is_own_target)


def _opened(path: Path) -> Any:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing of that name"
        raise NoData(path, expected="an HDF5 file", found=found, suggestion="the path of an .h5 file")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InvalidStream(
            f"{path} cannot be opened as an HDF5 file.",
            expected="an HDF5 file that is whole",
            received=str(error),
            suggestion="h5ls, to see what is in it",
        ) from error


def _column(file: Any, key: str) -> Column:
    """The rows of a dataset, by the quickest way there is."""
    dataset = _dataset(file, key)
    where = f"dataset {key!r} of {file.filename}"
    check_rows(dataset.dtype, dataset.shape or (), where)
    column = _past_the_library(dataset, where)
    if column is not None and _agrees(column, dataset):
        return column
    return _through_the_library(Path(file.filename), key, where)


def _dataset(file: Any, key: str) -> Any:
    found = file.get(key)
    if isinstance(found, h5py.Dataset):
        return found
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    listed = ", ".join(map(repr, names[:_LISTED])) + (
        f" and {len(names) - _LISTED:,} more" * (len(names) > _LISTED)
    )
    raise InvalidStream(
        f"{file.filename} has no dataset {key!r}.",
        expected=f"one of {listed}" if names else "a file with datasets; this one has none",
        received=f"{key!r}" + (", which is a group" if isinstance(found, h5py.Group) else ""),
        suggestion=f"x={names[0]!r}" if names else "another file",
    )


def _past_the_library(dataset: Any, where: str) -> Column | None:
    """Rows from the mapped file; None where the library is needed."""
    path = dataset.file.filename
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        end = Path(path).stat().st_size
        if offset is None or offset + dataset.nbytes > end:
            return None
        return MappedColumn(np.memmap(path, dataset.dtype, "r", offset=offset, shape=dataset.shape), where)
    chunks = find_chunks(dataset)
    if chunks is None:
        return None
    file = np.asarray(np.memmap(path, np.uint8, "r"))
    is_plain = not chunks.filters and chunks.has_whole_rows and chunks.shape[1:] == dataset.shape[1:]
    return (PlainColumn if is_plain else ChunkedColumn)(dataset, chunks, file, where)


def _agrees(column: Column, dataset: Any) -> bool:
    """Whether the library reads the same: it may know of conversions, links and places that we do not."""
    try:
        ours, theirs = column.take(np.zeros(1, np.int64)), dataset[:1].astype(column.dtype)
    except (OSError, Unreadable):
        return True  # a damaged row, which is reported when it is read
    return bool(ours.tobytes() == theirs.tobytes())


def _through_the_library(path: Path, key: str, where: str) -> Column:
    dataset = _opened(path)[key]
    return SlicedColumn(dataset, where) if dataset.chunks is None else LibraryColumn(dataset, where)


class LibraryColumn(GroupedColumn):
    """Rows of chunks that only the HDF5 library can decompress."""

    def __init__(self, dataset: Any, where: str) -> None:
        dtype, shape = check_rows(dataset.dtype, dataset.shape, where)
        sizes = np.full(-(-shape[0] // dataset.chunks[0]), dataset.chunks[0], np.int64)
        sizes[-1] = shape[0] - int(sizes[:-1].sum())
        super().__init__(where, dtype, shape[1:], sizes)
        self._dataset, self._file = dataset, dataset.file  # without its file, a dataset is closed
        self._lock = threading.Lock()

    @property
    def working_bytes(self) -> int:
        """A group, and what the library has of it."""
        return 2 * self.group_bytes

    def load(self, number: int) -> Group:
        """The rows of a chunk."""
        begin = self.begin(number)
        with self._lock:
            rows = self._dataset[begin : begin + int(self.sizes[number])]
        return Group(rows.astype(self.dtype, copy=False))
