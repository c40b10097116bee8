"""The test for library files, and the short form of a line of code."""

from __future__ import annotations

import functools
import importlib.util
import sysconfig
from pathlib import Path

_PACKAGES = ("tensorflow", "keras", "memfit", "numpy")
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file is Python's own or was installed, also where that is a link to somewhere else."""
    if filename.startswith("<"):
        return True
    paths = (Path(filename), Path(filename).resolve())
    return any(
        not _INSTALLED.isdisjoint(path.parts) or any(map(path.is_relative_to, _library_folders()))
        for path in paths
    )


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    specs = map(importlib.util.find_spec, _PACKAGES)
    packages = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    folders = map(Path, [*packages, *map(sysconfig.get_path, _LIBRARIES)])
    return tuple({path for folder in folders for path in (folder, folder.resolve())})


def shown_line(filename: str, number: int) -> str:
    """As short as a reader can tell it from others: below the current folder, or with the one it is in."""
    here, file = Path.cwd(), Path(filename).resolve()
    shown = file.relative_to(here) if file.is_relative_to(here) else Path(*file.parts[-2:])
    return f"{shown}:{number}"
