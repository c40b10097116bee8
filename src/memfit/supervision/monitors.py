"""A look at the host's memory now and then, so that something is done before the kernel kills."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress

from memfit.garbage import return_free_memory
from memfit.supervision.desks import Desk, tell
from memfit.supervision.readings import host_reading
from memfit.units import format_size

_SECONDS = 0.5
_LINE_SECONDS = 5.0
SCARCE = 0.05  # of the memory there is
_PLENTY = 0.1


class Monitor:
    """A thread that reads the memory around this process, and makes room when little is left."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._is_scarce = False
        self._next_line = 0.0

    def start(self) -> None:
        """Begin; it ends with the process."""
        threading.Thread(target=self._look_on, name="memfit monitor", daemon=True).start()

    def _look_on(self) -> None:
        while True:
            time.sleep(_SECONDS)
            with suppress(OSError):
                self.look(host_reading(), time.monotonic())

    def look(self, reading: dict[str, int], now: float) -> None:
        """Take in one reading."""
        left = reading["available_bytes"] / reading["total_bytes"]
        if left < SCARCE and not self._is_scarce:
            self._is_scarce = True
            self._make_room(reading)
        elif left > _PLENTY:
            self._is_scarce = False
        if self._is_scarce or now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            self._desk.journal.write("memory", **reading)

    def _make_room(self, reading: dict[str, int]) -> None:
        self._desk.writer.pace.ask()
        gc.collect()
        return_free_memory()
        left, total = (format_size(reading[name]) for name in ("available_bytes", "total_bytes"))
        self._desk.journal.write("scarce", **reading)
        tell(
            f"Only {left} of {total} of the host's memory are left. What nobody uses was given back, and a "
            "checkpoint is written, so that little is lost if the system kills the script."
        )
