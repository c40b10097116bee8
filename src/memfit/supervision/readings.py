"""What a training needs and has left, written down while it runs."""

from __future__ import annotations

import time
from typing import Any

from memfit.devices import device_memory, host_memory, process_bytes
from memfit.errors import NotMeasurable
from memfit.supervision.journals import JournalFile

_SECONDS = 1.0  # between two lines


def host_reading() -> dict[str, int]:
    """The memory of this process, and what is left around it."""
    host = host_memory()
    return {
        "process_bytes": process_bytes(),
        "available_bytes": host.usable_available_bytes,
        "total_bytes": host.usable_total_bytes,
    }


def device_reading() -> dict[str, int]:
    """What the device holds, and has held at most; nothing where nobody counts."""
    try:
        memory = device_memory()
    except NotMeasurable:
        return {}
    return {"device_bytes": memory.current_bytes, "peak_bytes": memory.peak_bytes}


class Steps:
    """Lines about the steps of one training, no more than one in a second."""

    def __init__(self, journal: JournalFile, training: int) -> None:
        self._journal, self._training = journal, training
        self._next = 0.0
        self._ooms = 0

    def note(self, model: Any, protection: Any, **where: int) -> None:
        """A step is over, and the next one comes."""
        if protection is not None:
            self._note_ooms(protection)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS
            size = None if protection is None else protection.journal.micro_batch_size
            facts = {**where, "loss": _loss(model), "micro_batch_size": size}
            self._journal.write(
                "step", training=self._training, **facts, **device_reading(), **host_reading()
            )

    def _note_ooms(self, protection: Any) -> None:
        for oom in protection.journal.ooms[self._ooms :]:
            self._journal.write("oom", training=self._training, **oom.to_dict())
        self._ooms = len(protection.journal.ooms)


def _loss(model: Any) -> float | None:
    """The loss of the epoch so far, where Keras keeps it."""
    found = next((metric for metric in model.metrics if metric.name == "loss"), None)
    return None if found is None else float(found.result())
