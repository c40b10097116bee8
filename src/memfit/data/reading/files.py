"""Files of a folder, as bytes, so that any name will do; many of them take little room."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt


class Names(Sequence[bytes]):
    """Names in one piece of memory: as many bytes as they have letters, and eight each."""

    def __init__(self, names: Iterable[bytes]) -> None:
        listed = list(names)
        self._ends = np.cumsum([len(name) for name in listed], dtype=np.int64)
        self._text = b"".join(listed)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        begin = int(self._ends[index - 1]) if index > 0 else 0
        return self._text[begin : int(self._ends[index])]

    @property
    def held_bytes(self) -> int:
        """The bytes of the names in memory."""
        return len(self._text) + self._ends.nbytes

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Some of them."""
        found = np.empty(len(indices), object)
        found[:] = [self[index] for index in indices.tolist()]
        return found


def list_files(folder: Path, suffixes: tuple[bytes, ...]) -> list[bytes]:
    """All files below a folder with one of these endings, sorted; links are followed, each folder once."""
    return sorted(_files(os.fsencode(folder), suffixes))


def _files(folder: bytes, suffixes: tuple[bytes, ...]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        real = os.path.realpath(current)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.name.lower().endswith(suffixes):
                    yield entry.path
                elif _is_folder(entry):
                    waiting.append(entry.path)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round in a circle
        return False


def shown(path: bytes) -> str:
    """A path that can be printed."""
    return path.decode("utf-8", "backslashreplace")
