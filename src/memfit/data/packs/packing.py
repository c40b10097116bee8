"""`pack`: arguments, places and the kind of source are checked before TensorFlow is loaded."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Unpack

from memfit.core.errors import InvalidStream, NoData
from memfit.data.manifest import Pack
from memfit.data.packs.pack_options import PackOptions, Settings, check_places, read_settings
from memfit.data.packs.pack_source import PackSource
from memfit.machine import check_installed

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


def pack(
    source: str | os.PathLike[str], dest: str | os.PathLike[str], **options: Unpack[PackOptions]
) -> Pack:
    """Pack a folder of images, or an HDF5, npz or npy file, into a few large files in the folder `dest`.

    Elements are read a few at a time, however large the source is. What was begun and not finished goes on
    with the shards that are missing; the pack is read once more at the end, and its manifest written last.

    >>> memfit.data.pack("photos", "packed", labels="folders").elements
    5000
    """
    settings = read_settings(**options)
    path, folder = Path(source), Path(dest)
    check_places(path, folder)
    check_installed()
    with closing(find_source(path, settings)) as found:
        from memfit.data.packs.make_pack import make

        return make(found, settings, folder, path)


def find_source(path: Path, settings: Settings) -> PackSource:
    """The source of a pack at a path: a folder of images, or a file of arrays."""
    if path.is_dir():
        _refuse(settings, ("x", "y"), f"{path} is a folder of images, which has no arrays")
        from memfit.data.packs.image_folder import ImageFolder

        return ImageFolder(path, settings)
    if not path.exists():
        raise NoData(
            path,
            expected="a folder of images, or a file that ends in .h5, .npz or .npy",
            found="nothing of that name",
            suggestion=f"ls {path.parent}",
        )
    _refuse(settings, ("labels", "size"), f"{path} is no folder of images")
    from memfit.data.packs.array_files import Hdf5File, NpyFile, NpzFile

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
