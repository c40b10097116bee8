"""Readings over time: cheap ones often, looks at all objects as rarely as they cost."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from memfit.core.errors import NotMeasurable
from memfit.core.records import Reading
from memfit.machine import device_memory, process_bytes, runtime_started
from memfit.private.tensorflow.eager_tensors import EagerTensor, bytes_of
from memfit.private.tensorflow.function_graphs import (
    count_closures,
    count_gradients,
    is_graph,
    kinds_of_graphs,
)
from memfit.watching.events import Events

_MOST_READINGS = 2000
_LOOK_SHARE = 0.01  # of the time, for looks at all objects
_READ_SHARE = 0.005
_FREE_SECONDS = 0.02  # at the beginning, so that short programs are seen as well
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.01, 1.0
_LONGEST_WAIT_SECONDS = 10.0  # even where readings cost more than their share


class Timeline:
    """The readings of a watch, at most so many: every other one goes when there are too many."""

    def __init__(self, events: Events, step: Callable[[], int]) -> None:
        self.readings: list[Reading] = []
        self.interval_seconds = _SHORTEST_SECONDS
        self._events, self._step = events, step
        self._began = time.perf_counter()
        self._has_device_statistics = True
        self._tensors: tuple[int | None, int | None] = (None, None)
        self._began_processors = time.process_time()
        self._look_seconds, self._last_look_seconds = 0.0, 0.0
        self._spent = 0.0
        self._looks = 0

    def read(self, *, is_last: bool = False) -> None:
        """Take a reading now; a short watch sees tensors at its beginning and at its end."""
        now = time.perf_counter()
        if not self.readings:
            self._began, self._began_processors = now, time.process_time()
        if self._is_worth_a_look() or (is_last and self._looks == 1):
            self._look()
        now = time.perf_counter()
        tensors, tensor_bytes = self._tensors
        self.readings.append(
            Reading(
                seconds=round(now - self._began, 4),
                step=self._step(),
                process_bytes=process_bytes(),
                device_bytes=self._device_bytes(),
                tensors=tensors,
                tensor_bytes=tensor_bytes,
                graphs=len(self._events.graphs),
                traces=self._events.traced,
                closures=count_closures(),
                gradients=count_gradients(),
            )
        )
        if len(self.readings) > _MOST_READINGS:
            del self.readings[1::2]

    def lasted(self) -> float:
        """The seconds that the watch has lasted, by the clock or by the processors, whichever is less.

        What a watch costs is a share of both: on a busy machine the clock runs on while nothing is done.
        """
        processors = time.process_time() - self._began_processors
        return min(time.perf_counter() - self._began, processors)

    def _is_worth_a_look(self) -> bool:
        share = _LOOK_SHARE * self.lasted()
        return self._looks == 0 or self._look_seconds + self._last_look_seconds <= share

    def spent(self, seconds: float) -> None:
        """Wait until readings that cost so much are within their share; the longer it lasts, the rarer."""
        self._spent += seconds
        lasted = self.lasted()
        due = (self._spent - _FREE_SECONDS) / _READ_SHARE - lasted
        wanted = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, lasted / 80))
        self.interval_seconds = min(_LONGEST_WAIT_SECONDS, max(wanted, due))

    def _device_bytes(self) -> int | None:
        if not self._has_device_statistics or not runtime_started():
            return None  # reading would start the runtime, and a limit could no longer be set
        try:
            return device_memory().current_bytes
        except NotMeasurable:
            self._has_device_statistics = False
            return None

    def _look(self) -> None:
        """Count all eager tensors, and the graphs that were there before the watch."""
        began = time.thread_time()
        kinds = frozenset({EagerTensor, *kinds_of_graphs()})
        found = [thing for thing in gc.get_objects() if type(thing) in kinds]
        tensors = [thing for thing in found if type(thing) is EagerTensor]
        if not self.readings:
            self._events.graphs.update(filter(is_graph, found))
        self._looks += 1
        self._tensors = (len(tensors), sum(map(bytes_of, tensors)))
        self._last_look_seconds = time.thread_time() - began
        self._look_seconds += self._last_look_seconds
