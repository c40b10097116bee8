"""`pack`: arguments and places are looked at first, before the seconds that TensorFlow takes to load."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Unpack

from memfit.data.packs.options import PackOptions, check_places, read_settings
from memfit.data.packs.records import Pack
from memfit.data.packs.sources import find_source
from memfit.devices import check_installed


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
        from memfit.data.packs.making import make

        return make(found, settings, folder, path)
