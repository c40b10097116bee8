"""A look at the host's memory now and then, so that something is done before the kernel kills."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from typing import Any

from memfit.core.errors import NotMeasurable
from memfit.core.units import format_size
from memfit.machine import device_memory, host_memory, process_bytes
from memfit.machine.readings import return_free_memory
from memfit.running.checkpoints.store import ChildContext
from memfit.running.journal.events import (
    DeviceReading,
    HostReading,
    MemoryEvent,
    OutOfMemoryEvent,
    ScarceMemoryEvent,
    StepEvent,
)
from memfit.running.journal.run_folder import JournalFile, tell

_SECONDS = 0.5
_LINE_SECONDS = 5.0
SCARCE = 0.05  # of the memory there is
_PLENTY = 0.1


class Monitor:
    """A thread that reads the memory around this process, and makes room when little is left."""

    def __init__(self, context: ChildContext) -> None:
        self._context = context
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

    def look(self, reading: HostReading, now: float) -> None:
        """Take in one reading."""
        left = reading.available_bytes / reading.total_bytes
        if left < SCARCE and not self._is_scarce:
            self._is_scarce = True
            self._make_room(reading)
        elif left > _PLENTY:
            self._is_scarce = False
        if self._is_scarce or now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            self._context.journal.write(MemoryEvent(reading))

    def _make_room(self, reading: HostReading) -> None:
        self._context.writer.pace.ask()
        gc.collect()
        return_free_memory()
        left, total = format_size(reading.available_bytes), format_size(reading.total_bytes)
        self._context.journal.write(ScarceMemoryEvent(reading))
        tell(
            f"Only {left} of {total} of the host's memory are left. Unused memory was given back, and a "
            "checkpoint is written, so that little is lost if the system kills the script."
        )


_SECONDS_BETWEEN_READINGS = 1.0  # between two lines


def host_reading() -> HostReading:
    """The memory of this process, and the memory that is left around it."""
    host = host_memory()
    return HostReading(process_bytes(), host.usable_available_bytes, host.usable_total_bytes)


def device_reading() -> DeviceReading | None:
    """The memory that the device holds, and the most that it has held; None where it is not counted."""
    try:
        memory = device_memory()
    except NotMeasurable:
        return None
    return DeviceReading(memory.current_bytes, memory.peak_bytes)


class StepReadings:
    """Lines about the steps of one training, no more than one in a second."""

    def __init__(self, journal: JournalFile, training: int) -> None:
        self._journal, self._training = journal, training
        self._next = 0.0
        self._protection: Any = None
        self._ooms = 0  # of it, that are written down

    def note(self, model: Any, protection: Any, *, epoch: int, batch: int, step: int) -> None:
        """A step is over, and the next one comes."""
        self._note_ooms(protection)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS_BETWEEN_READINGS
            self._write(protection, _loss(model), epoch=epoch, batch=batch, step=step)

    def end(self, history: Any, protection: Any, *, epoch: int, batch: int, step: int) -> None:
        """The last step is over; its line is written in any case."""
        self._note_ooms(protection)
        losses = getattr(history, "history", {}).get("loss") or [None]
        loss = None if losses[-1] is None else float(losses[-1])
        self._write(protection, loss, epoch=epoch, batch=batch, step=step)

    def _write(self, protection: Any, loss: float | None, *, epoch: int, batch: int, step: int) -> None:
        size = None if protection is None else protection.notes.micro_batch_size
        event = StepEvent(
            self._training,
            epoch=epoch,
            batch=batch,
            step=step,
            loss=loss,
            micro_batch_size=size,
            device=device_reading(),
            host=host_reading(),
        )
        self._journal.write(event)

    def _note_ooms(self, protection: Any) -> None:
        if protection is None:
            return
        if protection is not self._protection:  # each call of `train_on_batch` has its own
            self._protection, self._ooms = protection, 0
        for oom in protection.notes.ooms[self._ooms :]:
            self._journal.write(OutOfMemoryEvent(self._training, oom.to_dict()))
        self._ooms = len(protection.notes.ooms)


def _loss(model: Any) -> float | None:
    """The loss of the epoch so far, where Keras keeps it."""
    found = next((metric for metric in model.metrics if metric.name == "loss"), None)
    return None if found is None else float(found.result())
