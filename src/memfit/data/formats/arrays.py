"""`from_arrays`: arrays, in memory or in `.npy` and `.npz` files, as batches."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from memfit.core.errors import InvalidStream, NoData
from memfit.data.reading.archives import list_members, open_member, open_npy
from memfit.data.reading.columns import Column, MappedColumn, SlicedColumn, open_columns
from memfit.data.stream.options import StreamOptions, read_options


def from_arrays(source: Any, y: Any = None, *, x: str | None = None, **options: Unpack[StreamOptions]) -> Any:
    """Rows of arrays as a `tf.data.Dataset` that stays within `ram`, however large the arrays are.

    source: the inputs: a `.npy` or `.npz` file, which is not loaded, an array of NumPy, which is not copied,
        or anything with shape, dtype and rows that can be sliced, as zarr's arrays.
    y: the targets: another one of these, the name of an array in the same `.npz` file, or "input" (the input
        is its own target, as for an autoencoder).
    x: which array of an `.npz` file are the inputs, where several could be.

    Compressed arrays of an `.npz` file are unpacked to a temporary file first.

        dataset = memfit.data.from_arrays("images.npy", "labels.npy", ram="512MiB")
        dataset = memfit.data.from_arrays("data.npz", x="images", y="labels")
        model.fit(dataset)
    """
    settings = read_options(**options)
    is_own_target = isinstance(y, str) and y == "input"
    names = _names(source, x)
    y_name = y if isinstance(y, str) and y in names else None
    inputs = _member(source, _choose(source, names, x, beside=y_name)) if names else _column(source)
    if y is None or is_own_target:
        targets = None
    elif names and isinstance(y, str) and not Path(y).exists():
        targets = _member(source, _choose(source, names, y, beside=None))
    else:
        targets = _column(y)
    return open_columns(inputs, targets, settings, is_own_target=is_own_target)


def _names(source: Any, x: str | None) -> list[str]:
    """The arrays of an `.npz` file; none if it is something else."""
    names = []
    if isinstance(source, (str, os.PathLike)) and _is_archive(path := _existing(source)):
        names = list_members(path)
        if not names:
            raise NoData(path, expected="arrays", found="none", suggestion="numpy.savez(path, x=array)")
    if x is not None and not names:
        raise InvalidStream(
            "x names an array of an .npz file, and this is none.",
            expected="a path of an .npz file, or no x",
            received=f"x={x!r} and {_described(source)}",
            suggestion='from_arrays("images.npy", "labels.npy")',
        )
    return names


def _choose(source: Any, names: list[str], name: str | None, beside: str | None) -> str:
    """The array of an `.npz` file that is meant."""
    others = [other for other in names if other != beside]
    wanted = name or (others[0] if len(others) == 1 else "x")
    if wanted in names:
        return wanted
    raise InvalidStream(
        f"{source} has no array {wanted!r}.",
        expected=f"one of {', '.join(map(repr, names))}",
        received=repr(wanted) if name else "no x to say which",
        suggestion=f"x={names[0]!r}",
    )


def _member(source: Any, name: str) -> Column:
    return MappedColumn(open_member(Path(source), name), f"{source}, array {name!r}")


def _column(value: Any) -> Column:
    """Rows of a file or an array."""
    if isinstance(value, (str, os.PathLike)):
        path = _existing(value)
        if _is_archive(path):
            return _member(path, _choose(path, _names(path, None), None, beside=None))
        return MappedColumn(open_npy(path), str(path))
    if isinstance(value, np.ndarray):
        return MappedColumn(value, str(getattr(value, "filename", None) or "an array in memory"))
    if all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__")):
        return SlicedColumn(value, f"a {type(value).__name__}")
    raise InvalidStream(
        f"rows cannot be taken from {_described(value)}.",
        expected="a .npy or .npz file, an array of NumPy, or an object with shape, dtype and rows",
        received=_described(value),
        suggestion="numpy.asarray(…)",
    )


def _existing(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if not found.is_file():
        what = "a folder" if found.is_dir() else "nothing of that name"
        raise NoData(found, expected="a .npy or .npz file", found=what, suggestion="numpy.save(path, array)")
    return found


def _is_archive(path: Path) -> bool:
    return path.suffix.lower() == ".npz" or zipfile.is_zipfile(path)


def _described(value: Any) -> str:
    return f"{str(value)!r}" if isinstance(value, (str, os.PathLike)) else f"a {type(value).__name__}"
