"""A way back for variables that are about to change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.devices import device_memory, host_memory, limit_in_force
from memfit.errors import NotMeasurable
from memfit.models.graphs import Graph, written_variables
from memfit.runs.aligned import aligned_copy, as_tensor

# Up to this size, old values may stay until the next step replaces them: releasing them takes a call.
NOT_WORTH_RELEASING_BYTES = 4 << 20

_NUMBER = tf.TensorSpec((), tf.int64)


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

    def hold(self) -> list[Any]:
        """Hold the values of now; while tracing, the operations that do it."""
        return [
            held.assign(variable.read_value(), read_value=False)
            for held, variable in zip(self._held, self.variables, strict=True)
        ]

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


class Reversible:
    """A function that changes variables, and leaves them as they were when it fails."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: list[Any],
        *,
        jit_compile: bool = False,
        changing: list[Any] | None = None,
    ) -> None:
        """`changing` is for functions that run eagerly; what a graph changes is read off it."""
        self._eager = changing is not None
        self._run: Any = function
        if changing is None:
            self._run = Graph(function, signature, jit_compile=jit_compile)
            changing = written_variables(self._run.concrete)
            self._hold_and_run = Graph(self._after_holding, [_NUMBER, *signature])
        self._begun = tf.Variable(0, dtype=_NUMBER.dtype, trainable=False)
        self._number = 0
        self.way_back = WayBack(changing)

    @property
    def graph(self) -> Any:
        """What runs where old values are held on the device."""
        return self._hold_and_run.concrete

    def _after_holding(self, number: Any, *inputs: Any) -> Any:
        """First hold all old values, then say so, and only then run."""
        with tf.control_dependencies(self.way_back.hold()):
            begun = self._begun.assign(number, read_value=False)
        with tf.control_dependencies([begun]):
            return self._run(*inputs)

    def run(self, *inputs: Any, on_host: bool = False) -> Any:
        """Run the function; on any failure the variables are as they were. Old values stay until released."""
        self._number += 1
        held = on_host or self._eager
        if on_host:
            self.way_back.hold_on_host()
        elif self._eager:
            self.way_back.hold()
        try:
            if held:
                return self._run(*inputs)
            return self._hold_and_run(as_tensor(np.array(self._number, np.int64)), *inputs)
        except BaseException:
            if held or int(self._begun) == self._number:
                self.way_back.go_back()
            raise


def size_of(variable: Any) -> int:
    """The bytes of a tf.Variable."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


def reserve_bytes() -> int:
    """What old values may take beside the step: a twentieth of the limit, or of the machine without one."""
    total = limit_in_force() or host_memory().usable_total_bytes
    return max(NOT_WORTH_RELEASING_BYTES, total // 20)


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
