"""The time by which things are judged."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from memfit import private
from memfit.machine import process_bytes
from memfit.private.keras.layers import each_model, is_call_of_model, is_of_keras, model_used_by
from memfit.private.tensorflow.eager_tensors import each_array, is_dataset_of_arrays
from memfit.private.tensorflow.function_graphs import (
    each_closure,
    each_graph,
    graph_in_force,
    is_call_of_function,
    is_tracing,
    stack,
)
from memfit.watching.retraces import Retraces
from memfit.watching.user_lines import frames_from, is_users, self_of, users_lines

# That of the processors: a machine that is busy with something else then changes no judgement.
clock = time.process_time

logger = logging.getLogger("memfit")

LARGE_ARRAY_BYTES = 16 << 20
_LEAST_LOOKS = 3
_HOOKS = (os.fspath(Path(__file__).parent) + os.sep, os.fspath(Path(private.__file__).parent) + os.sep)
_Reference = Callable[[], Any]


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class TracedGraph:
    """A graph that a tf.function was traced into."""

    graph: _Reference
    function: _Reference
    function_id: int
    code: Any  # of the Python function, which is one object for all functions made at one place
    model: _Reference | None
    model_number: int  # 0 without a model; the model's lines are known by it
    lines: tuple[str, ...]
    seconds: float
    process_bytes: int
    is_whole: bool  # and not a part of another one, such as a branch

    @property
    def model_is_gone(self) -> bool:
        """Whether it belongs to a model that was made under the watch and is gone."""
        return self.model is not None and self.model() is None


@dataclass(frozen=True)
class Closure:
    """A Python function that TensorFlow holds."""

    function: _Reference
    graph: _Reference | None  # None where it was called in eager mode
    call: tuple[int, ...]  # lines on the way to it, which are the same for each pass of a loop
    lines: tuple[str, ...]
    process_bytes: int


@dataclass
class Array:
    """A large array that became a tensor, and what keeps it: the tensor, a dataset or a graph."""

    holder: _Reference
    array_bytes: int
    grown_bytes: int  # of the process, while it was copied
    lines: tuple[str, ...]
    seconds: float
    where: str
    looks: int = 0  # that have seen it alive

    @property
    def lasted(self) -> bool:
        """Whether it was there for more than a moment."""
        return self.looks >= _LEAST_LOOKS


class Events:
    """All that was told since the watch began; what died since is dropped now and then."""

    def __init__(self) -> None:
        self.traces: list[TracedGraph] = []
        self.closures: list[Closure] = []
        self.arrays: list[Array] = []
        self.arrays_made: Counter[tuple[str, ...]] = Counter()
        self.retraces = Retraces()
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.traced = 0
        self._lock = threading.RLock()  # garbage that is collected meanwhile may run anything
        self._models: dict[int, tuple[_Reference, int]] = {}  # by identity: the model and its number
        self._lines_of_models: list[tuple[str, ...]] = [()]  # by number; 0 is no model

    def note_model(self, model: Any) -> None:
        """A model exists."""
        known, number = self._models.get(id(model), (_nothing, 0))
        if known() is not model:
            number = len(self._lines_of_models)
            self._lines_of_models.append(_lines())
            self._models[id(model)] = (weakref.ref(model), number)

    def lines_of(self, trace: TracedGraph) -> tuple[str, ...]:
        """The lines that made the model that a graph belongs to, if it is gone; else that had it traced."""
        return self._lines_of_models[trace.model_number] if trace.model_is_gone else trace.lines

    def look(self, now: float) -> None:
        """See what is alive."""
        with self._lock:
            self.retraces.look(now)
            for array in self.arrays:
                array.looks += array.holder() is not None

    def drop_the_dead(self) -> None:
        """Forget what is gone, so that a long watch does not grow itself."""
        with self._lock:
            self.arrays = [one for one in self.arrays if one.holder() is not None or one.lasted]
            self.traces = [one for one in self.traces if one.graph() is not None]
            self.closures = [one for one in self.closures if one.function() is not None]
            self._models = {key: one for key, one in self._models.items() if one[0]() is not None}

    def note_graph(self, graph: Any) -> None:
        """A FuncGraph exists; it belongs to the tf.function that is being traced, if one is."""
        self.graphs.add(graph)
        function, model, is_traced = None, None, _is_traced(sys._getframe(1))
        for frame in frames_from(sys._getframe(1)):
            filename, name = frame.f_code.co_filename, frame.f_code.co_name
            if function is None and is_call_of_function(filename, name):
                function = self_of(frame)
            elif is_call_of_model(filename):
                model = self_of(frame) or model
        if function is None:
            return
        self.traced += is_traced
        model = model or model_used_by(function.python_function)
        made, number = self._models.get(id(model), (_nothing, 0))
        is_known = model is not None and made() is model
        trace = TracedGraph(
            graph=weakref.ref(graph),
            function=weakref.ref(function),
            function_id=id(function),
            code=getattr(function.python_function, "__code__", None),
            model=weakref.ref(model) if is_known else None,
            model_number=number if is_known else 0,
            lines=_lines(),
            seconds=clock(),
            process_bytes=process_bytes() if is_traced else 0,
            is_whole=is_traced,
        )
        with self._lock:
            self.traces.append(trace)
            if is_traced:
                line = trace.lines[0] if trace.lines else ""
                known = self.retraces.note(function, trace.function)
                known.note(line, trace.seconds, trace.process_bytes)

    def note_closure(self, function: Any) -> None:
        """TensorFlow is about to hold a Python function."""
        graph = graph_in_force()
        frame: FrameType | None = sys._getframe(1)
        call = []
        while frame is not None and not is_users(frame):
            call.append(frame.f_lineno)
            frame = frame.f_back
        closure = Closure(
            function=weakref.ref(function),
            graph=None if graph is None else weakref.ref(graph),
            call=tuple(call),
            lines=_lines(),
            process_bytes=process_bytes(),
        )
        with self._lock:
            self.closures.append(closure)

    def convert(self, array: Any, call: Callable[[], Any]) -> Any:
        """A large array becomes a tensor, now."""
        before = process_bytes()
        tensor = call()
        with harmless():
            self._note_array(array.nbytes, tensor, process_bytes() - before)
        return tensor

    def _note_array(self, array_bytes: int, tensor: Any, grown_bytes: int) -> None:
        holder, where = _holder(tensor)
        if holder is not None:
            array = Array(weakref.ref(holder), array_bytes, grown_bytes, _lines(), clock(), where)
            with self._lock:
                self.arrays_made[array.lines] += 1
                self.arrays.append(array)


def _is_traced(frame: FrameType) -> bool:
    """Whether it is a tf.function's trace that made a graph, and not something inside of one."""
    maker = next(one for one in frames_from(frame) if not one.f_code.co_filename.startswith(_HOOKS))
    return is_tracing(maker.f_code.co_filename, maker.f_code.co_name)


def _lines() -> tuple[str, ...]:
    return users_lines(stack(), sys._getframe(1))


def _holder(tensor: Any) -> tuple[Any, str]:
    """The holder of an array's values: a graph, a dataset or the tensor; nothing where Keras made it."""
    graph = graph_in_force()
    innermost = None
    for frame in frames_from(sys._getframe(1)):
        filename, name = frame.f_code.co_filename, frame.f_code.co_name
        if is_users(frame):
            break
        innermost = filename
        if is_dataset_of_arrays(filename, name) and graph is None:
            return (None, "") if _is_from_keras(frame) else (self_of(frame), "a dataset")
    if innermost is None or is_of_keras(innermost):
        return None, ""
    return (tensor, "a tensor") if graph is None else (graph, "the graph of a tf.function")


def _is_from_keras(frame: FrameType) -> bool:
    """Whether Keras, and not the user, called for something."""
    for one in frames_from(frame):
        if is_users(one):
            return False
        if is_of_keras(one.f_code.co_filename):
            return True
    return False


@contextmanager
def harmless() -> Iterator[None]:
    """Log the errors of a watch instead of raising them, so that the watched program goes on."""
    try:
        yield
    except Exception:
        logger.debug("A watch has missed something.", exc_info=True)


class _Hooks:
    """TensorFlow's and Keras' functions, changed for as long as there is a watch, for all watches at once."""

    def __init__(self) -> None:
        self._told: list[Events] = []
        self._changes = ExitStack()
        self._lock = threading.Lock()

    def tell(self, events: Events) -> None:
        """Hand everything on to a listener from now on."""
        with self._lock:
            if not self._told:
                self._install()
            self._told.append(events)

    def stop(self, events: Events) -> None:
        """Tell them nothing more; the last one leaves everything as it was."""
        with self._lock:
            if events in self._told:
                self._told.remove(events)
                if not self._told:
                    self._changes.close()

    def _install(self) -> None:
        enter = self._changes.enter_context
        enter(each_model(self._each("note_model")))
        enter(each_graph(self._each("note_graph")))
        enter(each_closure(self._each("note_closure")))
        enter(each_array(LARGE_ARRAY_BYTES, self._convert))

    def _each(self, name: str) -> Callable[[Any], None]:
        def note(thing: Any) -> None:
            for events in self._told:
                with harmless():
                    getattr(events, name)(thing)

        return note

    def _convert(self, array: Any, call: Callable[[], Any]) -> Any:
        for events in list(self._told):
            call = _converting(events, array, call)
        return call()


def _converting(events: Events, array: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: events.convert(array, call)


hooks = _Hooks()
