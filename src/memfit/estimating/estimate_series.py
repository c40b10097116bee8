"""Estimates of one or several batch sizes, and the largest batch that fits: trace once, ask often."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from memfit.core.errors import DoesNotFit, InvalidBatchSize
from memfit.core.records import Call, Estimate
from memfit.core.units import checked_micro_batch_size, checked_samples, format_size, parse_size
from memfit.graph.trace import no_collection
from memfit.machine import load_keras


def estimate_series(
    model: Any,
    batch_sizes: Iterable[SupportsIndex],
    *,
    data: Any = None,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: SupportsIndex | None = None,
    call: Call = "fit",
    probe: bool | None = None,
) -> Iterator[Estimate]:
    """The same for several batch sizes, with one trace where that is possible."""
    sizes = [checked_samples(size, InvalidBatchSize) for size in batch_sizes]
    budget_bytes = None if budget is None else parse_size(budget, "budget")
    micro_batch_size = checked_micro_batch_size(micro_batch_size)
    estimator = _Estimator(model, data, micro_batch_size=micro_batch_size, call=call, probe=probe)
    for size in sizes:
        yield estimator.at(size, budget_bytes)


class _Estimator:
    """A model, traced once, and what it needs at any batch size."""

    def __init__(self, model: Any, data: Any, *, probe: bool | None, **how: Any) -> None:
        load_keras()
        from memfit.estimating.step_program import step_program

        self._step = step_program(model, data, probes=probe, **how)

    def at(self, batch_size: int, budget_bytes: int | None = None) -> Estimate:
        from memfit.estimating.simulator.peaks import estimate, fits

        began = time.perf_counter()
        with no_collection():
            program, probed = self._step.probed_at(batch_size)
            found = dataclasses.replace(estimate(program), probed=probed)
            if budget_bytes is not None:
                fit = fits(program, found, budget_bytes)
                found = dataclasses.replace(found, budget_bytes=budget_bytes, fits=fit)
        return dataclasses.replace(found, seconds=time.perf_counter() - began)


def largest_batch(
    model: Any,
    budget: str | SupportsIndex,
    *,
    data: Any = None,
    micro_batch_size: SupportsIndex | None = None,
    call: Call = "fit",
    probe: bool | None = None,
    on_size: Callable[[int], None] = lambda size: None,
) -> Estimate:
    """The largest batch that fits a budget for sure; it may be that of another machine.

    `on_size` is called with each batch size that is tried. Each takes seconds; few are needed.

    >>> memfit.estimating.largest_batch(model, "2GiB").batch_size
    209
    """
    budget_bytes = parse_size(budget, "budget")
    micro_batch_size = checked_micro_batch_size(micro_batch_size)
    estimator = _Estimator(model, data, micro_batch_size=micro_batch_size, call=call, probe=probe)
    found: dict[int, Estimate] = {}

    def needed_bytes(size: int) -> int:
        on_size(size)
        found[size] = estimator.at(size, budget_bytes)
        if found[size].fits == "for sure":
            return min(found[size].safe_bytes, budget_bytes)
        return max(found[size].safe_bytes, budget_bytes + 1)

    size = largest_batch_size(needed_bytes, budget_bytes)
    if size == 0:
        enough = f"a budget of {-(-found[1].safe_bytes >> 20)}MiB"
        check_fits(found[1], suggestion=f"{enough}; memfit.remat(model) may need less")
    return found[size]


def check_fits(found: Estimate, *, suggestion: str) -> None:
    """Raise DoesNotFit unless an estimate is within its budget for sure."""
    if found.budget_bytes is None or found.fits == "for sure":
        return
    parts = dataclasses.asdict(found.parts)
    most = sorted(parts, key=lambda name: -parts[name])[:3]
    named = {name.removesuffix("_bytes"): parts.pop(name) for name in most}
    named["other"] = sum(parts.values())
    listed = ", ".join(f"{name} {format_size(size)}" for name, size in named.items())
    gaps = " and what gaps in the pool take" if found.safe_bytes <= found.budget_bytes else ""
    raise DoesNotFit(
        f"training needs up to {format_size(found.safe_bytes)}{gaps} at batch_size={found.batch_size}; "
        f"the budget is {format_size(found.budget_bytes)}.",
        f"{listed} (estimated)",
        suggestion=suggestion,
        limit_bytes=found.budget_bytes,
    )


_MOST = 2**30
_LEAP = 16  # how much further than the largest known size the first guesses go at most


def largest_batch_size(needed_bytes: Callable[[int], int], budget_bytes: int, *, most: int = _MOST) -> int:
    """The largest batch size, up to `most`, that the budget is enough for; 0 where it is not even for 1.

    Memory is taken to grow with the batch, all but evenly. The size that is returned fits and the next one
    does not, also where it does not quite.

    >>> largest_batch_size(lambda size: 100 + 7 * size, budget_bytes=1000)
    128
    """
    known: dict[int, int] = {}
    low, high, size = 0, most + 1, 1
    while high - low > 1:
        known[size] = needed_bytes(size)
        if known[size] <= budget_bytes:
            low = size
        else:
            high = size
        size = _next(known, low, high, budget_bytes)
    return low


def _next(known: dict[int, int], low: int, high: int, budget_bytes: int) -> int:
    """On the line through the two nearest sizes; now and then in the middle, which always comes to an end."""
    if len(known) == 1 or (high in known and len(known) % 3 == 0):
        guess = 2 * low if high not in known else (low + high) // 2
    else:
        other = high if high in known else max(size for size in known if size < low)
        bytes_per_sample = (known[other] - known[low]) / (other - low)
        room = budget_bytes - known[low]
        guess = low + int(room / bytes_per_sample) if bytes_per_sample > 0 else high
        if high not in known:
            guess = min(max(guess, 2 * low), _LEAP * low)
    return min(max(guess, low + 1), high - 1)
