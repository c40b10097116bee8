"""The lines that TensorFlow's allocator writes when memory runs out, thousands: kept in a file instead.

Everything else that a script writes passes as it is and at once; only a line that may be one of those is
held until its end is known.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 32 << 20  # of the file
# As absl writes it since TensorFlow 2.20, and as TensorFlow wrote it before.
_PREFIX = rb"(?:[IWE]\d{4} \S+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: [IWE] (?:\S*/)?)"
_HEAD = re.compile(
    _PREFIX + rb"(?:bfc_allocator\.cc:|(?:op_kernel|local_rendezvous)\.cc:.*"
    rb"(?:RESOURCE_EXHAUSTED|Resource exhausted))"
)
# The beginnings of the lines behind one of those.
_OPENINGS = (
    b"If the cause is memory fragmentation", b"Current allocation summary follows",
    b"Hint: If you want to see a list of allocated tensors", b"[[{{node ",
    b"[[{{function_node ",
)  # fmt: skip
_STATISTICS = (
    b"Limit:", b"InUse:", b"MaxInUse:", b"NumAllocs:", b"MaxAllocSize:", b"Reserved:", b"PeakReserved:",
    b"LargestFreeBlock:",
)  # fmt: skip
_NUMBER = re.compile(rb"\w+: +\d+(?:\.\d+)?(?:[KMGTP]i)?B?\s*$")
_MAY_BE = re.compile(rb"[IWE](?:\d{0,4}$|\d{4} )|\d{1,4}$|\d{4}-")
_LONGEST = 1 << 16  # of a line that is held


class AllocatorLog:
    """Takes those lines out of what a process writes."""

    def __init__(self, path: Path | None) -> None:
        """`path` is where they are kept; without one nothing is taken out."""
        self.path = path
        self.lines = 0  # that were taken out
        self._written = 0
        self._held = b""  # the beginning of a line that may be one of them
        self._is_inside = False  # the line before was one of them
        self._at_start = True  # of a line

    def passing(self, piece: bytes) -> bytes:
        """The part of a piece that passes."""
        if self.path is None:
            return piece
        out, kept = bytearray(), bytearray()
        *lines, rest = (self._held + piece).split(b"\n")
        self._held = b""
        for line in lines:
            if self._at_start and self._takes(line):
                kept += line + b"\n"
                self.lines += 1
            else:
                out += line + b"\n"
            self._at_start = True
        if kept:
            self._keep(kept)
        if self._at_start and len(rest) < _LONGEST and self._may_be_one(rest):
            self._held = rest
        elif rest:
            out += rest
            self._at_start = False
        return bytes(out)

    def rest(self) -> bytes:
        """The bytes that are held, when nothing more comes."""
        held, self._held = self._held, b""
        return held

    def _takes(self, line: bytes) -> bool:
        is_one = _HEAD.match(line) is not None
        self._is_inside = is_one or (self._is_inside and _is_further(line.lstrip()))
        return self._is_inside

    def _may_be_one(self, beginning: bytes) -> bool:
        if _MAY_BE.match(beginning):
            return True
        text = beginning.lstrip()
        known = (*_OPENINGS, *_STATISTICS)
        return self._is_inside and any(one.startswith(text[: len(one)]) for one in known)

    def _keep(self, lines: bytearray) -> None:
        if self.path is None or self._written > _MOST_BYTES:
            return
        self._written += len(lines)
        with suppress(OSError), self.path.open("ab") as file:  # a full disk loses them, and nothing else
            file.write(lines)


def _is_further(line: bytes) -> bool:
    return (
        not line or line.startswith(_OPENINGS) or bool(line.startswith(_STATISTICS) and _NUMBER.match(line))
    )
