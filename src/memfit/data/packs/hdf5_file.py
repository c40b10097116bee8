"""The one HDF5 file of a pack: joined from the rows of all shards, and read again to verify it."""

from __future__ import annotations

import dataclasses
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from memfit.core.errors import CannotWrite
from memfit.data.manifest import Feature, Pack, Shard
from memfit.data.packs.encodings import encoder, read_row, stored_dtype
from memfit.data.packs.pack_source import Element
from memfit.data.packs.shards import TEMPORARY, index_file, index_path, put_in_place, write_whole, writing

NAME = "data.h5"

_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 64 << 10
_ROOM_BYTES = 1 << 20  # what HDF5 needs beside the rows


def join(folder: Path, pack: Pack) -> Pack:
    """Write the file and its index; the rows stay until the manifest is written."""
    path, temporary = folder / NAME, folder / (NAME + TEMPORARY)
    _check_room(path, pack.size_bytes)
    indices = [np.load(index_path(folder / shard.name)) for shard in pack.shards]
    try:
        with writing(path):
            _write(temporary, folder, pack, indices)
            index = np.concatenate(indices)
            index[:, 0] = np.arange(len(index))
            written = index_file(index)
            write_whole(index_path(path), written)
            put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    shard = Shard(NAME, len(index), path.stat().st_size, zlib.crc32(written))
    return dataclasses.replace(pack, shards=(shard,))


def _check_room(path: Path, rows_bytes: int) -> None:
    """HDF5 does not recover from a full disk, so it is not begun where there is too little room."""
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < rows_bytes + _ROOM_BYTES:
        raise CannotWrite(
            str(path),
            f"it needs {rows_bytes + _ROOM_BYTES:,} bytes, and {free_bytes:,} are free",
            kept="All rows are kept: the same command joins them once there is room.",
        )


def _write(temporary: Path, folder: Path, pack: Pack, indices: list[Any]) -> None:
    features, at = pack.features, 0
    with h5py.File(temporary, "w") as file:
        for name, feature in features.items():
            _create(file, name, feature, pack.elements)
        if pack.class_names is not None:
            file.attrs["class_names"] = list(pack.class_names)
        for shard, index in zip(pack.shards, indices, strict=True):
            for rows in _blocks(folder / shard.name, index[:, 1].tolist()):
                elements = [read_row(features, row) for row in rows]
                for name in features:
                    file[name][at : at + len(rows)] = _stacked([element[name] for element in elements])
                at += len(rows)


def _create(file: Any, name: str, feature: Feature, length: int) -> None:
    if feature.kind == "text":
        file.create_dataset(name, (length,), h5py.string_dtype())
        return
    shape = feature.shape or ()
    chunks = None if 0 in shape else (min(length, _rows_in_chunk(feature)), *shape)
    file.create_dataset(name, (length, *shape), stored_dtype(feature), chunks=chunks)


def _stacked(values: list[Any]) -> Any:
    if not isinstance(values[0], bytes):
        return np.stack(values)
    texts = np.empty(len(values), object)
    texts[:] = values
    return texts


def _rows_in_chunk(feature: Feature) -> int:
    """One row where rows are images or as large; small ones would take more room for the list of chunks."""
    row_bytes = stored_dtype(feature).itemsize * int(np.prod(feature.shape or (), dtype=np.int64))
    is_image = feature.dtype == "uint8" and len(feature.shape or ()) == 3
    return 1 if is_image else max(1, _CHUNK_BYTES // max(1, row_bytes))


def _blocks(path: Path, lengths: list[int]) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        rows: list[bytes] = []
        for length in lengths:
            rows.append(file.read(length))
            if len(rows) * length >= _BLOCK_BYTES:
                yield rows
                rows = []
        if rows:
            yield rows


def read_rows(path: Path, features: dict[str, Feature], block: int) -> Iterator[bytes]:
    """The rows of a joined file, as bytes, to compare with their checksums."""
    encode = encoder("hdf5", features)
    with h5py.File(path, "r") as file:
        length = len(file[next(iter(features))])
        for begin in range(0, length, block):
            columns: dict[str, Any] = {name: file[name][begin : begin + block] for name in features}
            for at in range(min(block, length - begin)):
                element: Element = {name: column[at] for name, column in columns.items()}
                yield encode(element)
