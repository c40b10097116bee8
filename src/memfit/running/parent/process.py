"""The parent of a supervised script: it starts the child, passes signals on, and says why it ended."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memfit.machine import count_kills
from memfit.running.journal.events import HostReading
from memfit.running.journal.run_folder import ALLOCATOR_LOG, Job, tell
from memfit.running.parent.allocator_log import AllocatorLog
from memfit.running.parent.exit_causes import (
    END_SIGNALS,
    Ending,
    ExitCause,
    LastTraining,
    explain,
    kernel_messages,
)

_WAITED_FOR = {*END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGWINCH}
_FROM_KERNEL = 0x80  # SI_KERNEL: typed at a terminal, whose other processes have it already
_LOOK_SECONDS = 1.0

LastReadings = tuple[HostReading | None, LastTraining | None]


@dataclass(frozen=True)
class Ended:
    """The end of a child process: by itself with a code, or by a signal, and why."""

    code: int
    exit_cause: ExitCause | None = None
    was_asked: bool = False  # it was interrupted from outside


def run_child(
    job: Job, environment: Mapping[str, str], *, last: Callable[[], LastReadings] = lambda: (None, None)
) -> Ended:
    """Run a job once, in a child with our standard streams, until it ends.

    `last` is asked what the child had read of memory in the end, if it was killed.
    """
    log = AllocatorLog(Path(job.folder) / ALLOCATOR_LOG if job.is_guarded else None)
    kills, tee = count_kills(), StderrTee(log=log)
    with _signals_held():
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memfit.running.child.main"],
            env=replace(job, parent=os.getpid()).into(environment),
            stderr=tee.write_end,
        )
        tee.start()
        interrupted = _follow(process, tee)
    said = tee.finish()
    if log.lines:
        tell(f"{log.lines} lines of TensorFlow's allocator are in {log.path} (memfit diagnose reads them).")
    code = process.returncode
    if code >= 0:
        return Ended(code, was_asked=interrupted)
    host, training = last()
    ending = Ending(
        process=process.pid,
        signal=-code,
        kills=count_kills() - kills,
        said_last=said,
        kernel_says=kernel_messages() if code == -signal.SIGKILL else (),
        host=host,
        training=training,
    )
    return Ended(128 - code, explain(ending), was_asked=interrupted)


def _follow(process: subprocess.Popen[Any], tee: StderrTee) -> bool:
    """Pass signals on until the child has ended; whether its end was asked for."""
    interrupts, asked = 0, False
    while process.poll() is None:
        received = signal.sigtimedwait(_WAITED_FOR, _LOOK_SECONDS)
        if received is None or received.si_signo not in _WAITED_FOR - {signal.SIGCHLD}:
            continue  # some kernels report a signal of number 0
        number = received.si_signo
        if number == signal.SIGWINCH:
            tee.resize()
            continue
        asked = asked or number in END_SIGNALS
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            process.kill()
        elif received.si_code != _FROM_KERNEL:
            process.send_signal(number)
    return asked


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait until they are asked for, instead of ending us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        yield
    finally:
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass  # they were for the child
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_KEPT = 64  # reads
_READ_BYTES = 1 << 16
_PATIENCE_SECONDS = 1.0


class StderrTee:
    """Takes what a child writes; to the child it is a terminal wherever ours is one."""

    def __init__(self, target: int = 2, *, log: AllocatorLog | None = None) -> None:
        self._target, self._log = target, log or AllocatorLog(None)
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
                _write_all(self._target, self._log.passing(piece))
        with suppress(OSError):
            _write_all(self._target, self._log.rest())
        os.close(self._read_end)


def _write_all(target: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(target, piece) :]


def _pass_bytes_as_they_are(terminal: int) -> None:
    """Our own terminal turns line feeds into what it needs; this one must not do it too."""
    settings = termios.tcgetattr(terminal)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
