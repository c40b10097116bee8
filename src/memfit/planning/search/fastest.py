"""The fastest way to train within a budget: rematerialisation x micro-batches, weighed without a trace.

For each way to compute activations again, the largest micro-batch that fits is looked for; of those, the
fastest is chosen, and one that keeps the mathematics before one that does not.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memfit.core.records import LayerGraph, Program
from memfit.core.records.plans import what_a_split_changes
from memfit.core.records.programs import Span
from memfit.planning.search.micro_batches import (
    as_guarded,
    has_two_phases,
    seconds_in_micro_batches,
    seconds_of,
    seconds_to_copy,
    written_by,
)
from memfit.planning.search.recomputation import rematerialised
from memfit.rematerialising.cut_search import CutSearch

SHARES = (0.8, 0.6, 0.45, 0.3)  # of what is kept without cuts: the peaks that cuts are looked for
_ALIKE = 1.01  # times that differ by no more cannot be told apart
_NORMALISES = "moving_mean"  # a variable of layers whose statistics come from a batch
_DRAWS = "seed_generator_state"


@dataclass(frozen=True)
class Weighed:
    """The estimated peak bytes and safe bytes of a program."""

    peak_bytes: int
    safe_bytes: int


@dataclass(frozen=True, eq=False)
class Base:
    """A step to start from: the one that there is, or the same in another precision or compiled by XLA.

    `program_at` gives it for batches of a size. `layers` are for cutting; without them, or without leave to
    split, those levers stay unused.
    """

    program_at: Callable[[int], Program]
    layers: LayerGraph | None = None
    cuts: Sequence[tuple[Span, ...]] = ()  # ways to cut layers that are segments of their own
    may_split: bool = True
    precision: str = "float32"
    jit_compile: bool = False
    exact: bool = True
    notes: tuple[str, ...] = ()
    relative_time: float | None = None  # where its programs do not say it


@dataclass(frozen=True)
class Candidate:
    """One way to train, and what it comes to."""

    micro_batch_size: int
    batch_size: int
    spans: tuple[Span, ...]
    weighed: Weighed
    relative_time: float
    exact: bool
    notes: tuple[str, ...]
    base: Base
    one_phase: bool = False  # the step runs at once, with old values on the host

    @property
    def accumulation_steps(self) -> int:
        """The number of micro-batches of a batch."""
        return -(-self.batch_size // self.micro_batch_size)


@dataclass(frozen=True)
class Found:
    """The candidates found by a search: the fastest first; without any that fits, the smallest there is."""

    plain: Candidate
    fitting: tuple[Candidate, ...]
    smallest: Candidate


class Search:
    """Looks for ways to train a model on batches of one size."""

    def __init__(
        self, bases: Sequence[Base], batch_size: int, weigh: Callable[[Program], Weighed], room_bytes: int
    ) -> None:
        """The first base is the step as it is; times are relative to the first that says its time.

        `room_bytes` are for old values of steps on whole batches.
        """
        self._bases, self._batch_size, self._weigh = bases, batch_size, weigh
        self._room_bytes = room_bytes
        timed = next((base for base in bases if base.relative_time is None), bases[0])
        whole = timed.program_at(batch_size)
        moved = [whole.variables[number].name for number in written_by(whole)]
        self._normalises = any(_NORMALISES in name for name in moved)
        self._draws = any(_DRAWS in name for name in moved)
        self.plain_seconds = seconds_of(whole)
        self._known: dict[tuple[int, int, tuple[Span, ...], bool], Candidate] = {}
        self._levels: dict[int, list[tuple[Span, ...]]] = {}  # by identity of the layers
        self._factors: dict[int, dict[tuple[Span, ...], float]] = {}  # what was weighed wrongly, by how much
        self._guesses = True

    def within(self, budget_bytes: int) -> Found:
        """Everything worth knowing about a budget; nothing else is looked at where the plain step fits."""
        plain = self.candidate(self._bases[0], self._batch_size)
        if plain.weighed.safe_bytes <= budget_bytes:
            return Found(plain, (plain,), plain)
        fitting = list[Candidate]()
        for base in self._bases:
            above = 0  # with more cuts, larger micro-batches fit
            for spans in self.levels(base):
                found = self._largest(base, spans, budget_bytes, exact=_is_settled(fitting), above=above)
                if found is not None:
                    fitting.append(found)
                    above = found.micro_batch_size
                if found is None or found.micro_batch_size < self._batch_size:
                    fitting += self._at_once(base, spans, budget_bytes)
        smallest = min(map(self._corrected, self._known.values()), key=lambda one: one.weighed.safe_bytes)
        return Found(plain, tuple(_in_order(_pareto(fitting))), smallest)

    def candidate(
        self, base: Base, micro_batch_size: int, spans: tuple[Span, ...] = (), *, one_phase: bool = False
    ) -> Candidate:
        """One way, weighed."""
        key = (id(base), micro_batch_size, spans, one_phase)
        if key not in self._known:
            self._known[key] = self._weighed(base, micro_batch_size, spans, one_phase=one_phase)
        return self._corrected(self._known[key])

    def correct(self, candidate: Candidate, safe_bytes: int) -> None:
        """Take note of what a candidate really needs: others with the same cuts are wrong by as much.

        So are those with other cuts, as far as anybody can guess: one simulation comes to less than many.
        """
        factor = self._factor(candidate) * safe_bytes / candidate.weighed.safe_bytes
        self._factors.setdefault(id(candidate.base), {})[candidate.spans] = factor

    def forget_guesses(self) -> bool:
        """Take cuts that were never traced as they were weighed; whether that is something else."""
        guessed = self._guesses and any(self._factors.values())
        self._guesses = False
        return guessed

    def _factor(self, candidate: Candidate) -> float:
        known = self._factors.get(id(candidate.base), {})
        if candidate.spans in known or not (known and self._guesses):
            return known.get(candidate.spans, 1.0)
        return max(1.0, statistics.fmean(known.values()))

    def _corrected(self, candidate: Candidate) -> Candidate:
        factor = self._factor(candidate)
        if factor == 1.0:
            return candidate
        peak, safe = candidate.weighed.peak_bytes, candidate.weighed.safe_bytes
        weighed = Weighed(round(factor * peak), round(factor * safe))
        return dataclasses.replace(candidate, weighed=weighed)

    def _at_once(self, base: Base, spans: tuple[Span, ...], budget_bytes: int) -> list[Candidate]:
        """The whole batch without a second phase, if there would be one and that is what makes it fit."""
        if not has_two_phases(base.program_at(self._batch_size), self._room_bytes):
            return []
        found = self.candidate(base, self._batch_size, spans, one_phase=True)
        return [found] if found.weighed.safe_bytes <= budget_bytes else []

    def _weighed(
        self, base: Base, micro_batch_size: int, spans: tuple[Span, ...], *, one_phase: bool
    ) -> Candidate:
        program, notes = base.program_at(micro_batch_size), list(base.notes)
        if spans:
            assert base.layers is not None
            program = rematerialised(program, base.layers, spans)
            notes.append("Activations are computed again; values stay.")
        is_split = micro_batch_size < self._batch_size
        if is_split:
            seconds = seconds_in_micro_batches(program, self._batch_size)
            notes += what_a_split_changes(normalises=self._normalises, draws=self._draws)
        else:
            seconds = seconds_of(program)
        if one_phase:
            seconds += seconds_to_copy(program)
            notes.append("Old values are copied to the host before each step.")
        program = as_guarded(program, self._batch_size, None if one_phase else self._room_bytes)
        return Candidate(
            micro_batch_size=micro_batch_size,
            batch_size=self._batch_size,
            spans=spans,
            weighed=self._weigh(program),
            relative_time=base.relative_time or seconds / max(self.plain_seconds, 1e-12),
            exact=base.exact and not (is_split and self._normalises),
            notes=tuple(notes),
            base=base,
            one_phase=one_phase,
        )

    def levels(self, base: Base) -> Iterable[tuple[Span, ...]]:
        """Ways to cut, from none to as many as make the smallest peak."""
        if base.layers is None or base.layers.alone:
            return [(), *base.cuts]
        key = id(base.layers)
        if key not in self._levels:
            self._levels[key] = _ways_to_cut(CutSearch(base.layers))
        return self._levels[key]

    def _largest(
        self, base: Base, spans: tuple[Span, ...], budget_bytes: int, *, exact: bool, above: int
    ) -> Candidate | None:
        """The largest micro-batch that fits with these cuts; None where not even one sample does.

        If it has to be exact, batches that may not be split are not. It should be larger than `above`.
        """
        may_split = base.may_split and not (exact and self._normalises)
        sizes = even_sizes(self._batch_size) if may_split else [self._batch_size]
        fits, too_large = len(sizes), -1  # places in the sizes, the largest first
        while fits - too_large > 1:
            known = [
                (one.micro_batch_size, self._corrected(one).weighed.safe_bytes)
                for one in self._known.values()
                if one.base is base and one.spans == spans and not one.one_phase
            ]
            place = _next(sizes, known, budget_bytes) if known else _place_above(sizes, above)
            place = min(max(place, too_large + 1), fits - 1)
            if self.candidate(base, sizes[place], spans).weighed.safe_bytes <= budget_bytes:
                fits = place
            else:
                too_large = place
        return None if fits == len(sizes) else self.candidate(base, sizes[fits], spans)


def _ways_to_cut(search: CutSearch) -> list[tuple[Span, ...]]:
    smallest = search.smallest_peak()
    found = [search.least_time(share * smallest.plain_bytes) for share in SHARES]
    return list(dict.fromkeys(((), *(cuts.spans for cuts in (*found, smallest) if cuts is not None))))


def _place_above(sizes: Sequence[int], size: int) -> int:
    """The place of the next larger size; without one to compare with, of the largest."""
    return max((place for place, other in enumerate(sizes) if other > size > 0), default=0)


def _next(sizes: Sequence[int], known: list[tuple[int, int]], budget_bytes: int) -> int:
    """The place to look at: on the line through what is known, since bytes grow evenly."""
    if len(known) == 1:
        guess = max(1, int(known[0][0] * 0.8 * budget_bytes / known[0][1]))
    else:
        (low, low_bytes), (high, high_bytes) = min(known), max(known)
        each = max(1.0, (high_bytes - low_bytes) / max(1, high - low))
        guess = int(low + (budget_bytes - low_bytes) / each)
    return next((place for place, size in enumerate(sizes) if size <= guess), len(sizes) - 1)


def even_sizes(batch_size: int) -> list[int]:
    """Micro-batch sizes that split a batch into parts as equal as can be, the largest first.

    >>> even_sizes(10)
    [10, 5, 4, 3, 2, 1]
    """
    return sorted({math.ceil(batch_size / count) for count in range(1, batch_size + 1)}, reverse=True)


def _is_settled(fitting: Sequence[Candidate]) -> bool:
    """Whether there is a way that keeps the mathematics, and one beside it: more that do not are no use."""
    return any(one.exact for one in fitting) and any(not one.exact for one in fitting)


def _pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in time, peak and exactness at once."""
    return [
        one
        for one in candidates
        if not any(
            _figures(other) != _figures(one)
            and all(a <= b for a, b in zip(_figures(other), _figures(one), strict=True))
            for other in candidates
        )
    ]


def _figures(candidate: Candidate) -> tuple[float, int, bool]:
    return (candidate.relative_time, candidate.weighed.peak_bytes, not candidate.exact)


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best first; of those that are as fast as anybody can foretell, the one that needs least."""
    ordered = sorted(candidates, key=_preference)
    if not ordered:
        return ordered
    fastest = ordered[0]
    alike = [
        one
        for one in ordered
        if one.exact == fastest.exact and one.relative_time <= _ALIKE * fastest.relative_time
    ]
    best = min(alike, key=lambda one: one.weighed.peak_bytes)
    return [best, *(one for one in ordered if one is not best)]


def _preference(candidate: Candidate) -> tuple[bool, float, int]:
    return (not candidate.exact, candidate.relative_time, candidate.weighed.peak_bytes)
