"""A way back for variables that are about to change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import tensorflow as tf

from memfit.devices import device_memory, limit_in_force
from memfit.errors import NotMeasurable
from memfit.runs.aligned import aligned_copy, as_tensor


class WayBack:
    """The values of some tf.Variables before they change, held by private variables.

    Holding a value costs nothing until the variable gets a new one: then the old one stays. Where there is
    no room for that, the values are copied to the host beforehand instead. `hold` and
    `release` run eagerly or while tracing, the others eagerly.
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        with tf.init_scope():
            self._held = [
                tf.Variable(tf.zeros((0,), v.dtype), shape=tf.TensorShape(None), trainable=False)
                for v in variables
            ]

    @property
    def bytes(self) -> int:
        """What the old values take when all variables have new ones."""
        return sum(size_of(variable) for variable in self.variables)

    def hold(self) -> None:
        """Hold the values of now."""
        for held, variable in zip(self._held, self.variables, strict=True):
            held.assign(variable.read_value())

    def hold_on_host(self) -> None:
        """Hold copies of the values of now in host memory."""
        for held, variable in zip(self._held, self.variables, strict=True):
            held.assign(as_tensor(aligned_copy(variable.numpy())))

    def go_back(self) -> None:
        """Give the variables the values that are held, which allocates nothing."""
        for held, variable in zip(self._held, self.variables, strict=True):
            variable.assign(tf.ensure_shape(held.read_value(), variable.shape))

    def release(self) -> None:
        """Let the old values go."""
        for held in self._held:
            held.assign(tf.zeros((0,), held.dtype))


def size_of(variable: Any) -> int:
    """The bytes of a tf.Variable."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


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
