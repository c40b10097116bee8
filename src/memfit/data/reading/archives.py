"""The arrays of `.npy` and `.npz` files, mapped from the disk: reading a row reads no other."""

from __future__ import annotations

import logging
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from memfit.core.errors import CannotWrite, InvalidStream
from memfit.data.stream.source import Array

logger = logging.getLogger("memfit")

_LOCAL_HEADER = struct.Struct("<26xHH")  # of a file in a zip file: its last two numbers
_COPIED_BYTES = 1 << 20


def open_npy(path: Path) -> Array:
    """The array of a `.npy` file."""
    with path.open("rb") as file:
        return _map(file, str(path))


def open_member(path: Path, name: str) -> Array:
    """An array of an `.npz` file."""
    where = f"{path}, array {name!r}"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            return _unpacked(archive, info, where)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(sum(lengths), os.SEEK_CUR)
        return _map(file, where)


def list_members(path: Path) -> list[str]:
    """The names of the arrays of an `.npz` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise not_an_array(str(path), str(error), "an .npz file, as numpy.savez writes it") from error
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


def _map(file: BinaryIO, where: str) -> Array:
    """Map the array whose header begins where the file is."""
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
        if (
            dtype.hasobject or shape == () or 0 in shape
        ):  # nothing that could be mapped; whoever asked says so
            return np.empty(shape, dtype)
        mapped: Any = np.memmap(
            file, dtype, "r", offset=file.tell(), shape=shape, order="F" if is_fortran else "C"
        )
    except (ValueError, EOFError, OSError) as error:
        raise not_an_array(where, str(error), "an array, as numpy.save writes it") from error
    if is_fortran and len(shape) > 1:
        logger.warning(
            "%s is stored column by column (Fortran order): each row is read from all over the file. "
            "Try: numpy.save(path, numpy.ascontiguousarray(array))",
            where,
        )
    return np.asarray(mapped)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> Array:
    """A compressed array, unpacked to a file without a name that goes with the array."""
    folder = _temporary_folder()
    logger.info(
        "%s is compressed, so that its rows cannot be reached: unpacking %.1f MiB to a temporary file in %s. "
        "numpy.savez instead of numpy.savez_compressed needs none; TMPDIR puts it elsewhere",
        where,
        info.file_size / 2**20,
        folder,
    )
    if shutil.disk_usage(folder).free < info.file_size:
        raise CannotWrite(folder, f"{where} takes {info.file_size / 2**20:.1f} MiB unpacked")
    with tempfile.TemporaryFile(prefix="memfit-", dir=folder) as file:
        try:
            with archive.open(info) as packed:
                shutil.copyfileobj(packed, file, _COPIED_BYTES)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise not_an_array(where, str(error), "an undamaged .npz file") from error
        except OSError as error:
            raise CannotWrite(folder, str(error)) from error
        file.seek(0)
        return _map(file, where)


def _temporary_folder() -> str:
    """The folder for large temporary files: /tmp is often in memory, /var/tmp is not."""
    wanted = os.environ.get("TMPDIR", "/var/tmp")
    return wanted if os.access(wanted, os.W_OK | os.X_OK) else tempfile.gettempdir()


def not_an_array(where: str, reason: str, expected: str) -> InvalidStream:
    """The error for a file whose contents cannot be mapped as an array."""
    return InvalidStream(
        f"{where} cannot be read as an array.",
        expected=expected,
        received=reason or "an empty file",
        suggestion="numpy.save(path, array)",
    )
