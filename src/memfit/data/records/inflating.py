"""Compressed files as they were before.

TensorFlow takes one that was cut off between two records for a shorter one; here that is an error.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from memfit.data.records.frames import find_compression

_PIECE_BYTES = 64 << 10
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class Inflated(io.RawIOBase):
    """What is in a GZIP or ZLIB file, or in several that follow each other in one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill what can be filled at once; nothing at the end."""
        found = b""
        while not found:
            given = (
                self._inflate.unconsumed_tail or self._inflate.unused_data or self._file.read(_PIECE_BYTES)
            )
            if self._inflate.eof:
                if not given:
                    return 0
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            found = self._inflate.decompress(given, len(target))
            if not (given or found or self._inflate.eof):
                raise EOFError("the file ends before what was compressed in it")
        target[: len(found)] = found
        return len(found)


@contextmanager
def opened_whole(path: bytes) -> Iterator[BinaryIO]:
    """A file that is read from its beginning to its end, compressed or not."""
    with Path(os.fsdecode(path)).open("rb") as file:
        yield (
            cast(BinaryIO, io.BufferedReader(Inflated(file), _PIECE_BYTES))
            if find_compression(path)
            else file
        )
