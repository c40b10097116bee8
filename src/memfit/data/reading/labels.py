"""Labels of files: from folders, a table, a function or a list."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memfit.core.errors import InvalidStream
from memfit.data.reading.files import Names, shown

Labels = str | Path | Callable[[str], Any] | Sequence[Any] | npt.NDArray[Any] | None


class Labelling:
    """The label of each file as an array, and the names of classes where labels are words."""

    def __init__(self, values: Sequence[Any] | npt.NDArray[Any]) -> None:
        found = np.asarray(values)
        self.class_names: list[str] | None = None
        if found.dtype.kind in "US":
            names, found = np.unique(found.astype(str), return_inverse=True)
            self.class_names = names.tolist()
        self.values = np.asarray(found, np.int32 if found.dtype.kind in "iub" else np.float32)


def find_labels(labels: Labels, names: Names, root: bytes | None) -> Labelling | None:
    """The labels that were asked for, one for each file."""
    if labels is None:
        return None
    if isinstance(labels, str) and labels == "folders":
        return Labelling([_folder(name, root) for name in names])
    if isinstance(labels, (str, Path)):
        table = _read_table(Path(labels))
        return Labelling([_of_table(table, name, root, Path(labels)) for name in names])
    if callable(labels):
        return Labelling([labels(os.fsdecode(name)) for name in names])
    if len(labels) != len(names):
        raise InvalidStream(
            "the labels do not match the files.",
            expected=f"{len(names):,} labels, one for each file in the order of their sorted paths",
            received=f"{len(labels):,} labels",
            suggestion="a function of the path: labels=lambda path: ...",
        )
    return Labelling(labels)


def _folder(name: bytes, root: bytes | None) -> str:
    """The first folder below the root, or the one that the file is in."""
    if root is None:
        return shown(name.rpartition(b"/")[0].rpartition(b"/")[2])
    first, slash, _ = _below(name, root).partition(b"/")
    if not slash:
        raise InvalidStream(
            f"{shown(name)} is in no folder of its class.",
            expected=f"files in folders below {shown(root)}",
            received="a file beside them",
            suggestion="labels=None, or move it into a folder",
        )
    return shown(first)


def _below(name: bytes, root: bytes | None) -> bytes:
    """The path of a file from the root, where there is one."""
    return name if root is None else name.removeprefix(root).lstrip(b"/")


def _read_table(path: Path) -> dict[str, str]:
    """Labels by file name: the first two columns, with or without a heading."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidStream(
            f"{path} cannot be read as a table of labels: {error}.",
            expected='"folders", a CSV file with the columns file and label, a function, or a list',
            received=f"labels={str(path)!r}",
            suggestion='labels="folders"',
        ) from error
    return {name.strip(): label.strip() for name, label, *_ in rows}


def _of_table(table: dict[str, str], name: bytes, root: bytes | None, path: Path) -> Any:
    """The label of a file, which a table may call by its path from the root or by its name alone."""
    last = name.rpartition(b"/")[2]
    for way in map(os.fsdecode, (_below(name, root), last, name)):
        if way in table:
            return _number(table[way])
    raise InvalidStream(
        f"{path} has no label for {shown(name)}.",
        expected="a line for each file",
        received=f"{len(table):,} lines, none of them for {shown(last)}",
        suggestion=f"a line '{shown(last)},label' in {path}",
    )


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
