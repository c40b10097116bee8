"""What can be packed: something with elements that are read by index, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from memfit.data.packs.options import Settings
from memfit.data.packs.records import Feature, SourceKind
from memfit.errors import DamagedData, InvalidStream, NoData

Element = dict[str, Any]  # bytes or an array for each feature
Indices = npt.NDArray[np.int64]

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


class Source(Protocol):
    """Elements by index.

    `read` gives an element for each index, or what is wrong with it; it is called from several threads at
    once.
    """

    kind: SourceKind
    length: int
    features: dict[str, Feature]
    class_names: list[str] | None

    def stamps(self) -> Iterator[bytes]:
        """All that tells this source from another one, or from itself before it was changed."""

    def close(self) -> None:
        """Let go of files."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """About how many bytes each element takes in a pack."""

    def read(self, indices: Indices) -> Sequence[Element | DamagedData]:
        """The elements with these indices."""


def find_source(path: Path, settings: Settings) -> Source:
    """What is at a path."""
    if path.is_dir():
        _refuse(settings, ("x", "y"), f"{path} is a folder of images, which has no arrays")
        from memfit.data.packs.images import ImageFolder

        return ImageFolder(path, settings)
    if not path.exists():
        raise NoData(
            path,
            expected="a folder of images, or a file that ends in .h5, .npz or .npy",
            found="nothing of that name",
            suggestion=f"ls {path.parent}",
        )
    _refuse(settings, ("labels", "size"), f"{path} is no folder of images")
    from memfit.data.packs.arrays import Hdf5File, NpyFile, NpzFile

    suffix = path.suffix.lower()
    if suffix in HDF5_SUFFIXES:
        return Hdf5File(path, settings)
    if suffix in (".npz", ".npy"):
        return NpzFile(path, settings) if suffix == ".npz" else NpyFile(path, settings)
    table = f" --labels {path}" if suffix == ".csv" else ""
    raise InvalidStream(
        f"{path} is nothing that can be packed.",
        expected="a folder of images, or a file that ends in .h5, .hdf5, .npz or .npy",
        received=f"a file that ends in {suffix or 'nothing'}",
        suggestion=f"memfit pack FOLDER DEST{table}",
    )


def _refuse(settings: Settings, names: tuple[str, ...], fact: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None:
            received, suggestion = f"{name}={value!r}", f"leave out {name}"
            raise InvalidStream(f"{fact}.", expected=f"no {name}", received=received, suggestion=suggestion)
