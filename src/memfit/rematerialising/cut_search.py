"""The search for cuts, which divide a model into segments that are computed again in the backward pass.

Calls stand in the order in which they run. A segment [start, stop) keeps what later calls use of it; the rest
is computed again when its backward pass begins, and is alive until that ends:

    peak = max over segments of (kept by all segments before it + what is alive inside it)

What is kept adds up from left to right, so for a given peak the least that can be kept up to each call is a
shortest path over the possible segments, and the smallest peak is found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memfit.core.records import Cut, LayerGraph
from memfit.core.records.programs import Span, contains, outermost

_Table = NDArray[np.float64]

_STEPS = 40  # of a bisection
_LEVELS_OF_KEPT = 1024
_MOST_CANDIDATES = 48


@dataclass(frozen=True)
class Cuts:
    """Segments of a model, nested ones inside others, and what they come to."""

    spans: tuple[Span, ...]
    peak_bytes: int  # of activations and gradients
    plain_bytes: int  # the same without any segment
    extra_cost: float  # of computing again, in the unit of the calls' costs
    plain_cost: float


class CutSearch:
    """Looks for cuts of one model."""

    def __init__(self, graph: LayerGraph) -> None:
        self._tables = _Tables(graph)
        self._finer: list[_Finer] = []  # one for each level that was looked at

    def smallest_peak(self, *, levels: int = 1) -> Cuts:
        """The cuts with the smallest peak, each call computed at most `levels` times more."""
        tables = self._tables
        while len(self._finer) < levels - 1:
            self._finer.append(_Finer(tables, self._finer[-1].alive if self._finer else tables.alive))
        finer = self._finer[: levels - 1]
        spans = _segments(tables, finer[-1].alive if finer else tables.alive, 0, tables.count)
        return _cuts(tables, _with_inner(spans, finer))

    def least_time(self, peak_bytes: float) -> Cuts | None:
        """The cuts that cost the least time at a peak of at most so many bytes; None where there are none."""
        spans = _Quickest(self._tables, peak_bytes).spans()
        return None if spans is None else _cuts(self._tables, spans)


@dataclass
class _Tables:
    """The bytes that each possible segment keeps and holds, by start and stop."""

    graph: LayerGraph
    count: int = 0
    cost: _Table = field(default_factory=lambda: np.zeros(0))
    kept: _Table = field(default_factory=lambda: np.zeros(0))
    kept_plain: _Table = field(default_factory=lambda: np.zeros(0))
    alive: _Table = field(default_factory=lambda: np.zeros(0))
    barred: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    plain: float = 0.0

    def __post_init__(self) -> None:
        calls = self.graph.calls
        self.count = count = len(calls)
        self.cost = np.concatenate([[0.0], np.cumsum([call.cost for call in calls])])
        saved = np.concatenate([[0.0], np.cumsum([call.saved_bytes for call in calls])])
        peaks = saved[1:] + [call.working_bytes for call in calls]
        shape = (count + 1, count + 1)
        self.kept, self.alive = np.full(shape, np.inf), np.full(shape, np.inf)
        self.kept_plain, self.barred = np.full(shape, np.inf), np.ones(shape, bool)
        last, born_in = self._lifetimes()
        sizes = [tensor.bytes for tensor in self.graph.tensors]
        unsaved = [0 if tensor.saved else tensor.bytes for tensor in self.graph.tensors]
        dying: list[list[int]] = [[] for _ in range(count + 1)]
        for tensor, stop in enumerate(last):
            dying[stop].append(tensor)
        for start in range(count):
            kept = unkept = 0
            barred = False
            for stop in range(start + 1, count + 1):
                call = calls[stop - 1]
                barred = barred or call.why_not is not None
                made = [tensor for tensor in call.outputs if last[tensor] >= stop]
                gone = [t for t in dying[stop - 1] if start <= born_in[t] < stop - 1]
                kept += sum(sizes[t] for t in made) - sum(sizes[t] for t in gone)
                unkept += sum(unsaved[t] for t in made) - sum(unsaved[t] for t in gone)
                self.kept[start, stop] = kept
                self.kept_plain[start, stop] = saved[stop] - saved[start] + unkept
                self.barred[start, stop] = barred
            self.alive[start, start + 1 :] = np.maximum.accumulate(peaks[start:]) - saved[start]
        self.plain = float(peaks.max(initial=0.0))
        self._bar_halves_of_nested_models()

    def _bar_halves_of_nested_models(self) -> None:
        """A segment is inside a nested model, or all of it is inside the segment."""
        prefixes = {call.path[:depth] for call in self.graph.calls for depth in range(1, len(call.path))}
        for prefix in prefixes:
            inside = [n for n, call in enumerate(self.graph.calls) if call.path[: len(prefix)] == prefix]
            first, end = min(inside), max(inside) + 1
            self.barred[:first, first + 1 : end] = True
            self.barred[first + 1 : end, end + 1 :] = True

    def _lifetimes(self) -> tuple[list[int], list[int]]:
        """The last call that uses each tensor (`count` for outputs), and the call that makes it."""
        last, born = [-1] * len(self.graph.tensors), [-1] * len(self.graph.tensors)
        for number, call in enumerate(self.graph.calls):
            for tensor in call.inputs:
                last[tensor] = number
            for tensor in call.outputs:
                born[tensor] = number
        for tensor in self.graph.outputs:
            last[tensor] = self.count
        return last, born


def _segments(tables: _Tables, alive: _Table, begin: int, end: int) -> list[Span]:
    """The segments of [begin, end) with the smallest peak; the last one is not computed again."""
    low, high = 0.0, float(tables.alive[begin, end])
    found = [(begin, end)]
    for _ in range(_STEPS):
        middle = (low + high) / 2
        spans = _path(tables, alive, begin, end, middle)
        if spans is None:
            low = middle
        else:
            high, found = middle, spans
    return found[:-1] if found[-1][1] == end else found


def _path(tables: _Tables, alive: _Table, begin: int, end: int, peak: float) -> list[Span] | None:
    """The segments that keep the least, none of them above a peak; None where there are none."""
    kept = np.full(tables.count + 1, np.inf)
    kept[begin] = 0.0
    before = np.zeros(tables.count + 1, int)
    for stop in range(begin + 1, end + 1):
        starts = slice(begin, stop)
        inside = tables.alive if stop == end else alive  # the last one is not computed again
        usable = kept[starts] + inside[starts, stop] <= peak
        plain_step = tables.barred[starts, stop] & (stop != end)
        costs = np.where(plain_step, tables.kept_plain[starts, stop], tables.kept[starts, stop])
        offered = np.where(usable, kept[starts] + costs, np.inf)
        best = int(np.argmin(offered))
        kept[stop], before[stop] = offered[best], begin + best
    if not np.isfinite(kept[end]):
        return None
    spans = list[Span]()
    while end > begin:
        spans.append((int(before[end]), end))
        end = int(before[end])
    return spans[::-1]


class _Quickest:
    """The least time to come to each call with so much kept, in steps of a small part of the peak."""

    def __init__(self, tables: _Tables, peak: float) -> None:
        self._tables, self._peak = tables, peak
        self._unit = max(peak, 1.0) / _LEVELS_OF_KEPT
        self._best = np.full((tables.count + 1, _LEVELS_OF_KEPT + 1), np.inf)
        self._best[0, 0] = 0.0
        self._came: dict[tuple[int, int], tuple[int, int, bool]] = {}
        for stop in range(1, tables.count + 1):
            for start in range(stop):
                self._go(start, stop)

    def _go(self, start: int, stop: int) -> None:
        """From one call to another: plainly, or in a segment that is computed again."""
        tables = self._tables
        room = self._peak - tables.alive[start, stop]
        if room < 0:
            return
        highest = int(min(_LEVELS_OF_KEPT, room / self._unit))
        self._offer(start, stop, highest, tables.kept_plain[start, stop], 0.0, again=False)
        if not tables.barred[start, stop] and stop < tables.count:
            extra = float(tables.cost[stop] - tables.cost[start])
            self._offer(start, stop, highest, tables.kept[start, stop], extra, again=True)

    def _offer(self, start: int, stop: int, highest: int, kept: float, extra: float, *, again: bool) -> None:
        shift = int(np.ceil(kept / self._unit))
        width = min(highest + 1, _LEVELS_OF_KEPT + 1 - shift)
        if width <= 0:
            return
        offered = self._best[start, :width] + extra
        target = self._best[stop, shift : shift + width]
        for level in map(int, np.flatnonzero(offered < target)):
            target[level] = offered[level]
            self._came[stop, shift + level] = (start, level, again)

    def spans(self) -> list[Span] | None:
        stop = self._tables.count
        level = int(np.argmin(self._best[stop]))
        if not np.isfinite(self._best[stop, level]):
            return None
        spans = list[Span]()
        while stop:
            start, level, again = self._came[stop, level]
            if again:
                spans.append((start, stop))
            stop = start
        return spans[::-1]


class _Finer:
    """The bytes alive inside a segment that is itself cut into segments, for segments between good places."""

    def __init__(self, tables: _Tables, alive: _Table) -> None:
        self._tables, self._alive = tables, alive
        self.alive = alive.copy()
        places = _good_places(tables)
        peaks = np.geomspace(max(1.0, float(np.min(alive[np.isfinite(alive)]))), float(tables.plain), 48)
        for place in places[:-1]:
            for peak in peaks[::-1]:
                self._reach(place, places, float(peak))

    def _reach(self, begin: int, places: list[int], peak: float) -> None:
        tables = self._tables
        kept = {begin: 0.0}
        for stop in (place for place in places if place > begin):
            if any(held + tables.alive[start, stop] <= peak for start, held in kept.items()):
                self.alive[begin, stop] = min(self.alive[begin, stop], peak)
            starts = [start for start, held in kept.items() if held + self._alive[start, stop] <= peak]
            if starts:
                kept[stop] = min(kept[start] + tables.kept[start, stop] for start in starts)

    def segments(self, begin: int, end: int) -> list[Span]:
        return _segments(self._tables, self._alive, begin, end)


def _good_places(tables: _Tables) -> list[int]:
    """Places to cut at: where the least crosses in each of so many parts of the model, alike in bytes."""
    saved = tables.kept_plain[0, 1:]
    part = np.minimum(saved / max(saved[-1], 1.0) * _MOST_CANDIDATES, _MOST_CANDIDATES - 1).astype(int)
    best: dict[int, int] = {}
    for stop in range(1, tables.count):
        known = best.setdefault(int(part[stop - 1]), stop)
        if tables.kept[0, stop] < tables.kept[0, known]:
            best[int(part[stop - 1])] = stop
    return [0, *sorted(best.values()), tables.count]


def _with_inner(spans: list[Span], finer: list[_Finer]) -> list[Span]:
    """Segments, and those inside each."""
    if not finer:
        return spans
    nested = list[Span]()
    for begin, end in spans:
        inner = finer[-1].segments(begin, end)
        nested.extend([(begin, end), *_with_inner(inner, finer[:-1])])
    return nested


def _cuts(tables: _Tables, spans: list[Span]) -> Cuts:
    usable = [span for span in spans if not tables.barred[span]]
    extra = sum(tables.cost[stop] - tables.cost[start] for start, stop in usable)
    return Cuts(
        spans=tuple(usable),
        peak_bytes=round(_peak(tables, usable, 0, tables.count)),
        plain_bytes=round(tables.plain),
        extra_cost=float(extra),
        plain_cost=float(tables.cost[-1]),
    )


def _peak(tables: _Tables, spans: list[Span], begin: int, end: int) -> float:
    """The peak of [begin, end) with these segments: what lies between them is plain."""
    kept = peak = 0.0
    place = begin
    for start, stop in [*outermost(spans, (begin, end)), (end, end)]:
        if start > place:
            peak = max(peak, kept + tables.alive[place, start])
            kept += tables.kept_plain[place, start]
        if stop > start:
            inner = [span for span in spans if contains((start, stop), span)]
            peak = max(peak, kept + _peak(tables, inner, start, stop))
            kept += tables.kept[start, stop]
        place = stop
    return peak


def cuts_of(graph: LayerGraph, spans: tuple[Span, ...]) -> tuple[Cut, ...]:
    """Spans over all calls as positions in the nested models that they are in."""
    if graph.alone:
        return tuple(Cut(graph.calls[start].path, 0, 0) for start, _ in spans)
    found = []
    for start, stop in spans:
        first, last = graph.calls[start].path, graph.calls[stop - 1].path
        depth = next((d for d, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first) - 1)
        depth = _depth(graph, start, stop, depth)
        found.append(Cut(first[:depth], first[depth], last[depth] + 1))
    return tuple(found)


def _depth(graph: LayerGraph, start: int, stop: int, depth: int) -> int:
    """The nesting depth of a span's model; a whole nested model is one call of the one around it."""
    while depth > 0:
        prefix = graph.calls[start].path[:depth]
        inside = [n for n, call in enumerate(graph.calls) if call.path[:depth] == prefix]
        if min(inside) != start or max(inside) + 1 != stop:
            break
        depth -= 1
    return depth
