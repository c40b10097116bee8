"""HDF5, npz and npy files as sources of packs: rows of arrays, read where they are."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from memfit.core.errors import DamagedData, InvalidStream, MemfitError, NoData
from memfit.data.manifest import Feature, SourceKind
from memfit.data.packs.pack_options import Settings
from memfit.data.packs.pack_source import Element, Indices
from memfit.data.reading.archives import list_members, open_member, open_npy

_WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_NUMBERS = (*_WHOLE, "float16", "float32")  # what TensorFlow's lists of numbers hold exactly
_ARRAYS = (*_NUMBERS, "uint64", "float64")
_MOST_NUMBERS = 64  # of an element; more of them are smaller and quicker as the bytes of an array
_FRAME_BYTES = 64
_PIECE_BYTES = 1 << 20
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)

Column = Any  # something with a dtype, a shape and rows: an array, a memmap, a dataset of HDF5


class ArrayFile:
    """Arrays with a row for each element; which ones, and how they are opened, is up to the kind of file."""

    kind: SourceKind
    class_names: list[str] | None = None

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path, self._settings = path, settings
        try:
            self._columns = self._find()
        except MemfitError:
            raise
        except _UNREADABLE as error:
            raise DamagedData(str(path), f"{error}".rstrip(".") or type(error).__name__) from error
        self.length = _length(path, self._columns)
        self.features = {name: _feature(name, column, self._path) for name, column in self._columns.items()}

    def _find(self) -> dict[str, Column]:
        raise NotImplementedError

    def _files(self) -> list[Path]:
        return [self._path]

    def stamps(self) -> Iterator[bytes]:
        """Size and time of each file."""
        for path in self._files():
            found = path.stat()
            yield f"{path.name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode()

    def close(self) -> None:
        """Mapped files are let go of with the arrays."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """All rows are of one size."""
        row = sum(
            column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
            for column in self._columns.values()
        )
        return np.full(self.length, row + _FRAME_BYTES, np.int64)

    def read(self, indices: Indices) -> Sequence[Element | DamagedData]:
        """Rows; where a block of them cannot be read, one at a time."""
        try:
            rows = {name: _rows(column, indices) for name, column in self._columns.items()}
        except _UNREADABLE as error:
            if len(indices) > 1:
                return [self.read(indices[at : at + 1])[0] for at in range(len(indices))]
            return [DamagedData(f"row {indices[0]} of {self._path}", f"{error}".rstrip("."))]
        return [{name: row[at] for name, row in rows.items()} for at in range(len(indices))]

    def _chosen(self, names: list[str]) -> dict[str, str]:
        """Which arrays of a file are x and y."""
        x, y = self._settings.x, self._settings.y
        if x is None:
            x = "x" if "x" in names else names[0] if len(names) == 1 else None
        if y is None and "y" in names and x != "y":
            y = "y"
        for option, name in (("x", x), ("y", y)):
            if name not in names and (name is not None or option == "x"):
                raise InvalidStream(
                    f"{self._path} has {'several arrays' if name is None else f'no array {name!r}'}.",
                    expected=f"{option} to be one of {', '.join(names) or 'no arrays at all'}",
                    received=f"{option}={name!r}",
                    suggestion=f"--{option} {names[0] if names else 'NAME'}",
                )
        return {"x": str(x)} if y is None else {"x": str(x), "y": y}


class Hdf5File(ArrayFile):
    """Datasets of an HDF5 file."""

    kind: SourceKind = "hdf5"

    def _find(self) -> dict[str, Column]:
        self._file = h5py.File(self._path, "r")
        names: list[str] = []
        self._file.visititems(lambda name, item: names.append(name) if hasattr(item, "dtype") else None)
        return {key: self._file[name] for key, name in self._chosen(names).items()}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NpyFile(ArrayFile):
    """One array in a file, and another one for y if it was named."""

    kind: SourceKind = "npy"

    def _find(self) -> dict[str, Column]:
        x = self._settings.x
        if x is not None:
            fact = f"{self._path} is one array."
            raise InvalidStream(fact, expected="no x", received=f"x={x!r}", suggestion="leave out x")
        return dict(zip("xy", map(open_npy, self._files()), strict=False))

    def _files(self) -> list[Path]:
        y = self._settings.y
        return [self._path] if y is None else [self._path, Path(y)]


class NpzFile(ArrayFile):
    """Arrays in a zip file: read where they are, or unpacked on disk first if they are compressed."""

    kind: SourceKind = "npz"

    def _find(self) -> dict[str, Column]:
        names = self._chosen(list_members(self._path))
        if self._settings.check:
            for name in names.values():
                self._check(name)
        return {key: open_member(self._path, name) for key, name in names.items()}

    def _check(self, name: str) -> None:
        """Read an array once, since nothing else checks the checksum of one that is mapped."""
        with zipfile.ZipFile(self._path) as archive:
            info = archive.getinfo(f"{name}.npy")
            if info.compress_type == zipfile.ZIP_STORED:
                with archive.open(info) as packed:
                    while packed.read(_PIECE_BYTES):
                        continue


def _length(path: Path, columns: dict[str, Column]) -> int:
    lengths = {name: column.shape[0] if column.shape else 0 for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidStream(
            f"the arrays of {path} do not match.",
            expected="as many rows in y as in x",
            received=", ".join(f"{length:,} in {name}" for name, length in lengths.items()),
            suggestion="--y NAME of the array that belongs to x",
        )
    if not lengths["x"]:
        found = "an array without rows" if columns["x"].shape else "a single number"
        raise NoData(path, expected="arrays with rows", found=found, suggestion="--x NAME of another array")
    return int(lengths["x"])


def _feature(name: str, column: Column, path: Path) -> Feature:
    """The kind, type and shape in which a pack keeps the rows of an array."""
    dtype, shape = column.dtype, tuple(map(int, column.shape[1:]))
    if not shape and (dtype.kind in "SU" or h5py.check_string_dtype(dtype)):
        return Feature("text")
    if dtype.name not in _ARRAYS:
        raise InvalidStream(
            f"{name} of {path} has a type that packs do not keep.",
            expected=f"one of {', '.join(_ARRAYS)}, or texts",
            received=f"{dtype} of shape {column.shape}",
            suggestion=f'{name}.astype("float32")',
        )
    is_label = name == "y" and np.prod(shape, dtype=np.int64) <= _MOST_NUMBERS
    is_number = dtype.name in _NUMBERS and (is_label or not shape)
    return Feature("number" if is_number else "array", dtype.name, shape)


def _rows(column: Column, indices: Indices) -> Any:
    """Some rows; in one go where they follow each other, since a dataset of HDF5 is slow in any other way."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices) and (np.diff(indices) == 1).all():
        return column[first : last + 1]
    return [column[index] for index in indices.tolist()]
