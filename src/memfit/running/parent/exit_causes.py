"""Why a process ended that could not say so itself: by its signal, by the system, by its last output."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memfit.core.units import format_size
from memfit.machine.out_of_memory import RAN_OUT
from memfit.running.journal.events import Cause, HostReading

_CHECK = re.compile(r"Check failed|F\d{4} |terminate called|Fatal Python error")
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)  # what kernels end by that find no memory
_NEAR = 0.8  # of the limit
_SCARCE = 0.03  # of the memory there is: with less left, a kill is no riddle
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # requests to end


@dataclass(frozen=True)
class LastTraining:
    """The readings of the training that a process was in, of this start alone."""

    limit_bytes: int
    peak_bytes: int = 0
    steps: int = 0
    ooms: int = 0


@dataclass(frozen=True)
class Ending:
    """The signal that ended a process, with everything that may tell why."""

    process: int
    signal: int
    kills: int = 0  # that the kernel has counted in its cgroup while it ran
    said_last: Sequence[str] = ()  # on standard error
    kernel_says: Sequence[str] = ()
    host: HostReading | None = None  # the last one
    training: LastTraining | None = None  # under a limit


@dataclass(frozen=True)
class ExitCause:
    """Why it ended: a cause, a sentence, and what speaks for it."""

    cause: Cause
    words: str
    evidence: tuple[str, ...] = ()
    may_be_memory: bool = False  # nothing proves it, but if it happens again, it is likely


def explain(ending: Ending) -> ExitCause:
    """The likeliest cause; memory only where something speaks for it."""
    name = _name_of(ending.signal)
    if ending.signal == signal.SIGKILL:
        return _killed(ending)
    evidence = tuple(_telling(ending.said_last))
    if any(map(RAN_OUT.search, ending.said_last)):
        return ExitCause("memory", f"It ended by {name} after it had run out of memory.", evidence)
    if ending.signal in END_SIGNALS:
        return ExitCause("asked", f"It was ended by {name}.")
    pressure = _pressure(ending.training) if ending.signal in CRASHES else None
    if pressure is not None:
        words = f"It crashed: {name}. Memory may be the reason."
        return ExitCause("unknown", words, (*evidence, pressure), may_be_memory=True)
    return ExitCause("unknown", f"It crashed: {name}.", evidence)


def _pressure(training: LastTraining | None) -> str | None:
    """The evidence for memory: some kernels end the process where they find none, instead of raising."""
    if training is None:
        return None
    limit = format_size(training.limit_bytes)
    if training.ooms:
        return f"it had run out of {limit} before, in the same training"
    if training.steps == 0:
        return f"it was in the first step of a training, under a limit of {limit}"
    if training.peak_bytes > _NEAR * training.limit_bytes:
        return f"its steps needed {format_size(training.peak_bytes)} of {limit}"
    return None


def _killed(ending: Ending) -> ExitCause:
    mine = tuple(line for line in ending.kernel_says if re.search(rf"\b{ending.process}\b", line))
    if ending.kills:
        counted = f"kills for memory that its cgroup has counted since it began: {ending.kills}"
        return ExitCause("memory", "The kernel killed it: its memory cgroup was full.", (counted, *mine))
    if mine:
        return ExitCause("memory", "The kernel killed it: the machine was out of memory.", mine)
    host = ending.host
    if host is not None and host.available_bytes < _SCARCE * host.total_bytes:
        last = (
            f"when it last looked, {format_size(host.available_bytes)} of {format_size(host.total_bytes)} "
            f"were left, and it held {format_size(host.process_bytes)}"
        )
        return ExitCause("memory", "It was killed, most likely by the kernel for memory.", (last,))
    return ExitCause("unknown", "It was killed by SIGKILL. Nothing says that memory was the reason.")


def _telling(lines: Sequence[str]) -> Iterator[str]:
    """The lines that say what was wrong, the last of each kind."""
    for pattern in (RAN_OUT, _CHECK):
        found = [line.strip() for line in lines if pattern.search(line)]
        if found:
            yield found[-1][:300]


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kernel_messages(path: Path = Path("/dev/kmsg"), most: int = 4096) -> list[str]:
    """The kernel's messages on processes that it killed; none where they may not be read."""
    found: list[str] = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return found
    try:
        for _ in range(most):
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # records were overwritten meanwhile
                continue
            except OSError:
                break
            if not record:
                break
            text = record.decode(errors="replace").partition(";")[2].splitlines()
            if text and "Killed process" in text[0]:
                found.append(text[0])
    finally:
        os.close(descriptor)
    return found
