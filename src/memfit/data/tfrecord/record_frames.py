"""The frames of TFRecord files: records are found by their headers, compression by the first bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from memfit.data.tfrecord.checksums import masked_checksums_of_lengths

HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4  # what a record takes beside its data

_HEADER = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_AT_ONCE = 4096


class Frames(NamedTuple):
    """The length of each record of a file, and what is wrong behind the last one, if anything is."""

    lengths: npt.NDArray[np.int64]
    damage: str | None


@contextmanager
def opened(path: bytes) -> Iterator[int]:
    """A file that is read here and there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def find_compression(path: bytes) -> Literal["", "GZIP", "ZLIB"]:
    """The compression of a file, by its first bytes."""
    with opened(path) as descriptor:
        begin = os.pread(descriptor, HEADER_BYTES, 0)
    # A length may look like the mark of GZIP; together with its checksum it does not.
    if len(begin) < HEADER_BYTES or is_sound(begin):
        return ""
    if begin.startswith(b"\x1f\x8b"):
        return "GZIP"
    return "ZLIB" if begin[0] == 0x78 and int.from_bytes(begin[:2], "big") % 31 == 0 else ""


def is_sound(header: bytes) -> bool:
    """Whether a length is what its checksum says."""
    return bool(_are_sound(np.frombuffer(header, _HEADER))[0])


def find_frames(path: bytes) -> Frames:
    """All records of a file, by their headers alone."""
    found, offset, damage = [np.empty(0, np.int64)], 0, None
    with opened(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        while offset < size_bytes and damage is None:
            headers = _headers_from(descriptor, offset, size_bytes)
            sound = _count_sound(headers)
            lengths = np.minimum(headers["length"][:sound], size_bytes).astype(np.int64)
            ends = offset + np.cumsum(lengths + FRAME_BYTES)
            whole = int(np.searchsorted(ends, size_bytes, "right"))
            found.append(lengths[:whole])
            offset = int(ends[whole - 1]) if whole else offset
            if whole < max(1, len(headers)):
                reason = "its length is damaged" if whole == sound < len(headers) else "the file ends in it"
                damage = f"{reason}; the rest of the file, {size_bytes - offset:,} bytes, is lost"
    return Frames(np.concatenate(found), damage)


def _headers_from(descriptor: int, offset: int, size_bytes: int) -> npt.NDArray[np.void]:
    """Some headers one after the other, the last of which may lead beyond the end."""
    headers: list[bytes] = []
    while offset < size_bytes and len(headers) < _AT_ONCE:
        header = os.pread(descriptor, HEADER_BYTES, offset)
        if len(header) < HEADER_BYTES:
            break
        headers.append(header)
        offset += int.from_bytes(header[:8], "little") + FRAME_BYTES
    return np.frombuffer(b"".join(headers), _HEADER)


def _count_sound(headers: npt.NDArray[np.void]) -> int:
    """The number of headers before the first damaged one."""
    damaged = np.flatnonzero(~_are_sound(headers))
    return int(damaged[0]) if len(damaged) else len(headers)


def _are_sound(headers: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    return np.asarray(masked_checksums_of_lengths(headers["length"]) == headers["checksum"])
