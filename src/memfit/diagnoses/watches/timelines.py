"""Readings over time: cheap ones often, looks at all objects as rarely as they cost."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from memfit.devices import device_memory, process_bytes, runtime_started
from memfit.diagnoses.watches import internals
from memfit.diagnoses.watches.events import Events
from memfit.errors import NotMeasurable
from memfit.records import Reading

_MOST_READINGS = 2000
_LOOK_SHARE = 0.01  # of the time, for looks at all objects
_READ_SHARE = 0.005
_FREE_SECONDS = 0.02  # at the beginning, so that short programs are seen as well
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.01, 1.0


class Timeline:
    """What there was, in at most so many readings: every other one goes when there are too many."""

    def __init__(self, events: Events, step: Callable[[], int]) -> None:
        self.readings: list[Reading] = []
        self.interval_seconds = _SHORTEST_SECONDS
        self._events, self._step = events, step
        self._began = time.perf_counter()
        self._has_device_statistics = True
        self._tensors: tuple[int | None, int | None] = (None, None)
        self._next_look = 0.0
        self._spent = 0.0
        self._looks = 0

    def read(self, *, is_last: bool = False) -> None:
        """Take a reading now; a short watch sees tensors at its beginning and at its end."""
        now = time.perf_counter()
        if not self.readings:
            self._began = now
        if now >= self._next_look or (is_last and self._looks == 1):
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
                closures=internals.count_closures(),
                gradients=internals.count_gradients(),
            )
        )
        if len(self.readings) > _MOST_READINGS:
            del self.readings[1::2]

    def spent(self, seconds: float, now: float) -> None:
        """Wait until readings that cost so much are within their share; the longer it lasts, the rarer."""
        self._spent += seconds
        lasted = now - self._began
        due = (self._spent - _FREE_SECONDS) / _READ_SHARE - lasted
        self.interval_seconds = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, lasted / 200, due))

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
        began = time.perf_counter()
        objects = gc.get_objects()
        kinds = list(map(type, objects))
        found = [thing for thing, kind in zip(objects, kinds, strict=True) if kind is internals.EagerTensor]
        if not self.readings:
            self._events.graphs.update(filter(internals.is_graph, _of_graph_kinds(objects, kinds)))
        self._looks += 1
        self._tensors = (len(found), sum(map(internals.bytes_of, found)))
        now = time.perf_counter()
        self._next_look = now + (now - began) / _LOOK_SHARE


def _of_graph_kinds(objects: list[object], kinds: list[type]) -> list[object]:
    """Those whose class has Graph in its name; asking each what it is would take much longer."""
    named = {kind for kind in set(kinds) if "Graph" in kind.__name__}
    return [thing for thing, kind in zip(objects, kinds, strict=True) if kind in named]
