"""A way back for variables that are about to change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from memfit.devices import device_memory, limit_in_force
from memfit.errors import NotMeasurable
from memfit.runs.aligned import aligned_copy, as_tensor
from memfit.runs.graphs import graph


class WayBack:
    """The values of some tf.Variables before they change.

    A reference to a value costs nothing until the variable changes: then the value is copied. Where there
    is no room for that, the values are copied to the host beforehand instead.
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        self._values: list[Any] = []
        self._read: Any = None

    @property
    def bytes(self) -> int:
        """What the copies take."""
        return sum(int(v.shape.num_elements() or 0) * v.dtype.size for v in self.variables)

    def remember(self, *, on_host: bool) -> None:
        """Keep the values of now."""
        self._values = []
        if on_host:
            self._values = [as_tensor(aligned_copy(variable.numpy())) for variable in self.variables]
            return
        self._read = self._read or graph(lambda: [v.read_value() for v in self.variables], input_signature=[])
        self._values = self._read()

    def go_back(self) -> None:
        """Give the variables the values that were remembered; allocates nothing."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)

    def forget(self) -> None:
        """Let the old values go."""
        self._values = []


def free_bytes() -> int | None:
    """What the device's pool could still give; None where nobody knows."""
    in_force, used = limit_in_force(), bytes_in_use()
    return None if in_force is None or used is None else in_force - used


def bytes_in_use() -> int | None:
    """What is in use on the device now; None where its allocator does not count."""
    try:
        return device_memory().current_bytes
    except NotMeasurable:
        return None


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait until a change that must not tear is through."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    pending: list[tuple[int, FrameType | None]] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield  # ignored, or handled outside Python
        return
    signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number, frame in pending[:1]:
            before(number, frame)
