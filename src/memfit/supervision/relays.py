"""Standard error of a child on its way to our own, unchanged; its last lines are remembered."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections import deque
from contextlib import suppress

_KEPT = 64  # reads
_READ_BYTES = 1 << 16
_PATIENCE_SECONDS = 1.0


class Relay:
    """Takes what a child writes; to the child it is a terminal wherever ours is one."""

    def __init__(self, target: int = 2) -> None:
        self._target = target
        self._is_terminal = os.isatty(target)
        self._read_end, self.write_end = pty.openpty() if self._is_terminal else os.pipe()
        self._last = deque[bytes](maxlen=_KEPT)
        if self._is_terminal:
            _pass_bytes_as_they_are(self.write_end)
            self.resize()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def start(self) -> None:
        """Begin, once the child has its end."""
        os.close(self.write_end)
        self._thread.start()

    def resize(self) -> None:
        """Tell the child how large our terminal is."""
        if self._is_terminal:
            with suppress(OSError):
                size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(self._read_end, termios.TIOCSWINSZ, size)

    def finish(self) -> list[str]:
        """Wait until all has come through, but not for those who go on in the background; its last lines."""
        self._thread.join(_PATIENCE_SECONDS)
        return b"".join(self._last).decode(errors="replace").splitlines()

    def _pass_on(self) -> None:
        with suppress(OSError):  # a terminal whose other end is closed, or ours
            while piece := os.read(self._read_end, _READ_BYTES):
                self._last.append(piece)
                _write_all(self._target, piece)
        os.close(self._read_end)


def _write_all(target: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(target, piece) :]


def _pass_bytes_as_they_are(terminal: int) -> None:
    """Our own terminal turns line feeds into what it needs; this one must not do it too."""
    settings = termios.tcgetattr(terminal)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
