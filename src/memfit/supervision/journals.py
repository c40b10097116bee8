"""What happens in a supervised run, as lines of JSON that are only ever added.

Each line is written at once, so that whoever reads sees whole lines, but for the last one of a run that was
killed while it wrote. Several processes may write: each line says when and who.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class JournalFile:
    """Adds lines to a journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read() != b"\n":
                self._write(b"\n")

    def write(self, event: str, **facts: Any) -> None:
        """Add a line; a disk that is full loses it, and nothing else."""
        line = {"event": event, "at": round(time.time(), 3), "process": os.getpid(), **facts}
        self._write(json.dumps(line).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            return

    def close(self) -> None:
        """Write no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_lines(path: Path) -> Iterator[Line]:
    """All whole lines of a journal, in order; what was torn is left out."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for text in file:
            if text.endswith(b"\n") and (line := _read(text)) is not None:
                yield line


def _read(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "event" in line else None
