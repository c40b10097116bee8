"""The fastest way to train within a budget: rematerialisation x micro-batches, weighed without a trace.

For each way to compute activations again, the largest micro-batch that fits is looked for; of those, the
fastest is chosen, and one that keeps the mathematics before one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memfit.plans.cuts import CutSearch
from memfit.plans.micro_batches import in_micro_batches, seconds_in_micro_batches
from memfit.plans.regions import written_by
from memfit.plans.remats import rematerialised
from memfit.plans.times import seconds_of
from memfit.records import LayerGraph, Program
from memfit.spans import Span

_SHARES = (0.8, 0.6, 0.45, 0.3)  # of what is kept without cuts: the peaks that cuts are looked for
_NORMALISES = "moving_mean"  # a variable of layers whose statistics come from a batch
_DRAWS = "seed_generator_state"


@dataclass(frozen=True)
class Weighed:
    """What a program needs."""

    peak_bytes: int
    safe_bytes: int


@dataclass(frozen=True)
class Candidate:
    """One way to train, and what it comes to."""

    micro_batch_size: int
    batch_size: int
    spans: tuple[Span, ...]
    weighed: Weighed
    relative_time: float
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def accumulation_steps(self) -> int:
        """How many micro-batches a batch is."""
        return -(-self.batch_size // self.micro_batch_size)


@dataclass(frozen=True)
class Found:
    """What a search has found: the fastest first; without any that fits, the smallest there is."""

    plain: Candidate
    fitting: tuple[Candidate, ...]
    smallest: Candidate


class Search:
    """Looks for ways to train a model on batches of one size."""

    def __init__(
        self,
        program_at: Callable[[int], Program],
        batch_size: int,
        weigh: Callable[[Program], Weighed],
        *,
        layers: LayerGraph | None = None,
        may_split: bool = True,
    ) -> None:
        """`program_at` gives the plain step on batches of a size.

        `layers` are for cutting; without them, or without leave to split, those levers stay unused.
        """
        self._program_at, self._batch_size, self._weigh = program_at, batch_size, weigh
        self._layers, self._may_split = layers, may_split
        whole = program_at(batch_size)
        moved = [whole.variables[number].name for number in written_by(whole)]
        self._normalises = any(_NORMALISES in name for name in moved)
        self._draws = any(_DRAWS in name for name in moved)
        self._plain_seconds = seconds_of(whole)
        self._known: dict[tuple[int, tuple[Span, ...]], Candidate] = {}

    def within(self, budget_bytes: int) -> Found:
        """Everything worth knowing about a budget."""
        plain = self.candidate(self._batch_size, ())
        if plain.weighed.safe_bytes <= budget_bytes:
            return Found(plain, (plain,), plain)
        largest = [self._largest(spans, budget_bytes) for spans in self._levels()]
        fitting = [candidate for candidate in largest if candidate is not None]
        smallest = min(self._known.values(), key=lambda one: one.weighed.safe_bytes)
        return Found(plain, tuple(sorted(_pareto(fitting), key=_preference)), smallest)

    def candidate(self, micro_batch_size: int, spans: tuple[Span, ...]) -> Candidate:
        """One way, weighed."""
        key = (micro_batch_size, spans)
        if key not in self._known:
            self._known[key] = self._weighed(micro_batch_size, spans)
        return self._known[key]

    def _weighed(self, micro_batch_size: int, spans: tuple[Span, ...]) -> Candidate:
        program, notes = self._program_at(micro_batch_size), list[str]()
        if spans:
            assert self._layers is not None
            program = rematerialised(program, self._layers, spans)
            notes.append("Activations are computed again; values stay.")
        is_split = micro_batch_size < self._batch_size
        if is_split:
            seconds = seconds_in_micro_batches(program, self._batch_size)
            program = in_micro_batches(program, self._batch_size)
            if self._normalises:
                notes.append("BatchNormalization takes its statistics from micro-batches.")
            if self._draws:
                notes.append("Random layers such as Dropout draw for each micro-batch.")
        else:
            seconds = seconds_of(program)
        return Candidate(
            micro_batch_size=micro_batch_size,
            batch_size=self._batch_size,
            spans=spans,
            weighed=self._weigh(program),
            relative_time=seconds / max(self._plain_seconds, 1e-12),
            exact=not (is_split and self._normalises),
            notes=tuple(notes),
        )

    def _levels(self) -> Iterable[tuple[Span, ...]]:
        """Ways to cut, from none to as many as make the smallest peak."""
        yield ()
        if self._layers is None:
            return
        search = CutSearch(self._layers)
        smallest = search.smallest_peak()
        found = [search.least_time(share * smallest.plain_bytes) for share in _SHARES]
        distinct = dict.fromkeys(cuts.spans for cuts in (*found, smallest) if cuts is not None)
        yield from (spans for spans in distinct if spans)

    def _largest(self, spans: tuple[Span, ...], budget_bytes: int) -> Candidate | None:
        """The largest micro-batch that fits with these cuts; None where not even one sample does."""
        sizes = even_sizes(self._batch_size) if self._may_split else [self._batch_size]
        fits, too_large = len(sizes), -1  # places in the sizes, the largest first
        while fits - too_large > 1:
            place = self._next(sizes, spans, budget_bytes, too_large, fits)
            if self.candidate(sizes[place], spans).weighed.safe_bytes <= budget_bytes:
                fits = place
            else:
                too_large = place
        return None if fits == len(sizes) else self.candidate(sizes[fits], spans)

    def _next(
        self, sizes: Sequence[int], spans: tuple[Span, ...], budget_bytes: int, too_large: int, fits: int
    ) -> int:
        """The place to look at: on the line through what is known of these cuts, since bytes grow evenly."""
        known = [
            (c.micro_batch_size, c.weighed.safe_bytes) for (_, s), c in self._known.items() if s == spans
        ]
        if too_large < 0:
            return 0
        if len(known) == 1:
            guess = max(1, int(known[0][0] * 0.8 * budget_bytes / known[0][1]))
        else:
            (low, low_bytes), (high, high_bytes) = min(known), max(known)
            each = max(1.0, (high_bytes - low_bytes) / max(1, high - low))
            guess = int(low + (budget_bytes - low_bytes) / each)
        place = next((place for place, size in enumerate(sizes) if size <= guess), len(sizes) - 1)
        return min(max(place, too_large + 1), fits - 1)


def even_sizes(batch_size: int) -> list[int]:
    """Micro-batch sizes that split a batch into parts as equal as can be, the largest first.

    >>> even_sizes(10)
    [10, 5, 4, 3, 2, 1]
    """
    return sorted({math.ceil(batch_size / count) for count in range(1, batch_size + 1)}, reverse=True)


def _pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in time, peak and exactness at once."""
    return [
        one
        for one in candidates
        if not any(
            other is not one
            and other.relative_time <= one.relative_time
            and other.weighed.peak_bytes <= one.weighed.peak_bytes
            and other.exact >= one.exact
            for other in candidates
        )
    ]


def _preference(candidate: Candidate) -> tuple[bool, float, int]:
    return (not candidate.exact, candidate.relative_time, candidate.weighed.peak_bytes)
