"""A way back for variables that are about to change."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.guarding.step.batches import aligned_copy, as_tensor
from memfit.guarding.step.room import CompiledNeed, LeastNeed, need_of, room_checked
from memfit.machine import host_memory, limit_in_force
from memfit.model.snapshots import Snapshot
from memfit.model.traced_functions import Graph, written_variables
from memfit.private.keras.trainer import optimizers_of

_NUMBER = tf.TensorSpec((), tf.int64)
_SMALL_BYTES = 1 << 14


class Rollback:
    """The values of some tf.Variables before they change, held by private variables.

    They are copies, so that a variable changes where it is: weights that move with every step leave gaps in
    the pool. What XLA compiles makes new values anyway, so there the old ones are held as they are. Where
    there is no room for them, the large ones are on the host instead. `hold`, `hold_small` and `release` run
    eagerly or while tracing, the others eagerly.
    """

    def __init__(self, variables: list[Any], *, copies: bool = True) -> None:
        self.variables, self._copies = variables, copies
        with tf.init_scope():
            self._nowhere = tf.zeros((0,), tf.int32)
            self._held = [
                tf.Variable(tf.zeros((0,), v.dtype), shape=tf.TensorShape(None), trainable=False)
                for v in variables
            ]

    @property
    def bytes(self) -> int:
        """The bytes of the old values."""
        return sum(size_of(variable) for variable in self.variables)

    def hold(self) -> list[Any]:
        """Hold the values of now; while tracing, the operations that do it."""
        return [self._hold(held, variable) for held, variable in self._pairs()]

    def hold_small(self) -> None:
        """Hold only what takes next to nothing, of which models have many: each copy takes a call."""
        for held, variable in self._pairs():
            if _is_small(variable):
                self._hold(held, variable)

    def hold_large_on_host(self) -> None:
        """Hold copies of all other values of now in host memory."""
        for held, variable in self._pairs():
            if not _is_small(variable):
                held.assign(as_tensor(aligned_copy(variable.numpy())))

    def go_back(self) -> None:
        """Give the variables the values that are held, each where it lies, which allocates nothing.

        Where a user holds what lies there, it cannot be written; then the held value itself takes its place.
        """
        all_of_it = dict.fromkeys(("begin", "end", "strides"), self._nowhere)
        for held, variable in self._pairs():
            value = tf.ensure_shape(held.read_value(), variable.shape)
            if self._is_copied(variable):
                try:
                    tf.raw_ops.ResourceStridedSliceAssign(ref=variable.handle, value=value, **all_of_it)
                except tf.errors.ResourceExhaustedError:
                    variable.assign(value)
                # Writing a part of a variable makes all who read it copy it, from then on.
                tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
            else:
                variable.assign(value)

    def release(self) -> None:
        """Let the old values go, but for what takes next to nothing: each takes a call."""
        for held, variable in self._pairs():
            if not _is_small(variable):
                held.assign(tf.zeros((0,), held.dtype))

    def _hold(self, held: Any, variable: Any) -> Any:
        value = variable.read_value()
        if self._is_copied(variable):
            value = tf.raw_ops.DeepCopy(x=value)
        return held.assign(value, read_value=False)

    def _is_copied(self, variable: Any) -> bool:
        """Not counters and seeds: they are small, and not all devices can copy them."""
        return self._copies and bool(variable.dtype.is_floating)

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._held, self.variables, strict=True)


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
        self._eager, self._jit_compile = changing is not None, jit_compile
        self._run: Any = function
        if changing is None:
            self._run = Graph(function, signature, jit_compile=jit_compile)
            with nullcontext() if jit_compile else room_checked():
                changing = written_variables(self._run.concrete)
            self._hold_and_run = Graph(self._after_holding, [_NUMBER, *signature])
        self._begun = tf.Variable(0, dtype=_NUMBER.dtype, trainable=False)
        self._number = 0
        self.way_back = Rollback(changing, copies=not jit_compile)
        hold_small = self.way_back.hold_small
        self._hold_small: Any = hold_small if self._eager else Graph(hold_small, [])

    @functools.cached_property
    def need(self) -> LeastNeed | CompiledNeed:
        """The need of the function; nothing for one that runs eagerly."""
        if self._eager:
            return LeastNeed(0, 0)
        return need_of(self._run.concrete, jit_compile=self._jit_compile)

    @property
    def graph(self) -> Any:
        """The graph that runs where old values are held on the device."""
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
            self._hold_small()
            self.way_back.hold_large_on_host()
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


def _is_small(variable: Any) -> bool:
    return size_of(variable) <= _SMALL_BYTES


def size_of(variable: Any) -> int:
    """The bytes of a tf.Variable."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


def reserve_bytes() -> int:
    """The bytes that old values may take beside the step, of the limit or of the machine without one."""
    return room_for_old_values(limit_in_force() or host_memory().usable_total_bytes)


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


NOT_WORTH_RELEASING_BYTES = 4 << 20  # old values of this size may stay until the next step replaces them
_SHARE = 20
_MOST_OLD_BYTES = 64 << 20  # by so much more than plain Keras a step may need, however much there is


def room_for_old_values(total_bytes: int) -> int:
    """A twentieth of the memory there is, up to 64 MiB; a step that would need more runs in two phases."""
    return max(NOT_WORTH_RELEASING_BYTES, min(_MOST_OLD_BYTES, total_bytes // _SHARE))


@contextmanager
def optimizers_kept_whole(model: Any) -> Iterator[None]:
    """Leave no optimizer half built: if its slots do not fit, it is as if building had not begun."""
    before = Snapshot(optimizer for optimizer in optimizers_of(model) if not optimizer.built)
    try:
        yield
    except BaseException:
        before.restore()
        raise
