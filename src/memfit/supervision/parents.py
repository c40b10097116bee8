"""The parent of a supervised script: it starts the child, passes signals on, and says why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from memfit.devices import count_kills
from memfit.supervision.deaths import END_SIGNALS, Death, Ending, Host, LastTraining, explain, kernel_messages
from memfit.supervision.jobs import Job
from memfit.supervision.relays import Relay

_WAITED_FOR = {*END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGWINCH}
_FROM_KERNEL = 0x80  # SI_KERNEL: typed at a terminal, whose other processes have it already
_LOOK_SECONDS = 1.0

LastReadings = tuple[Host | None, LastTraining | None]


@dataclass(frozen=True)
class Ended:
    """How a child ended: by itself with a code, or by a signal, and why."""

    code: int
    death: Death | None = None
    was_asked: bool = False  # somebody interrupted it


def run_child(
    job: Job, environment: Mapping[str, str], *, last: Callable[[], LastReadings] = lambda: (None, None)
) -> Ended:
    """Run a job once, in a child with our standard streams, until it ends.

    `last` is asked what the child had read of memory in the end, if it was killed.
    """
    kills, relay = count_kills(), Relay()
    with _signals_held():
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memfit.supervision.child"],
            env=replace(job, parent=os.getpid()).into(environment),
            stderr=relay.write_end,
        )
        relay.start()
        interrupted = _follow(process, relay)
    said = relay.finish()
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


def _follow(process: subprocess.Popen[Any], relay: Relay) -> bool:
    """Pass signals on until the child has ended; whether somebody asked for the end."""
    interrupts, asked = 0, False
    while process.poll() is None:
        received = signal.sigtimedwait(_WAITED_FOR, _LOOK_SECONDS)
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        number = received.si_signo
        if number == signal.SIGWINCH:
            relay.resize()
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
