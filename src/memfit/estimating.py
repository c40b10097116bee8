"""Estimates of one or several batch sizes, and the largest batch that fits: trace once, ask often."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from memfit.devices import load_keras
from memfit.errors import DoesNotFit, InvalidBatchSize
from memfit.garbage import no_collection
from memfit.records import Call, Estimate, Probe, Program
from memfit.samples import checked_micro_batch_size, checked_samples
from memfit.units import format_size, parse_size


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
        from memfit.foresight import foresee

        self._foresight = foresee(model, data, **how)
        self._probe = probe
        self._probes: dict[bool, Probe] = {}  # of batches that are split, and of others

    def at(self, batch_size: int, budget_bytes: int | None = None) -> Estimate:
        from memfit.estimates.limits import fits
        from memfit.estimates.peaks import estimate

        began = time.perf_counter()
        with no_collection():
            program, probed = self._program_at(batch_size)
            found = dataclasses.replace(estimate(program), probed=probed)
            if budget_bytes is not None:
                fit = fits(program, found, budget_bytes)
                found = dataclasses.replace(found, budget_bytes=budget_bytes, fits=fit)
        return dataclasses.replace(found, seconds=time.perf_counter() - began)

    def _program_at(self, batch_size: int) -> tuple[Program, bool]:
        """What a step does, and whether a probe has said what its kernels need."""
        from memfit.estimates.calibrations import calibrate, unknown_kinds

        program = self._foresight.at(batch_size)
        wanted = bool(unknown_kinds(program)) if self._probe is None else self._probe
        if not wanted:
            return program, False
        if program.method == "xla":
            note = "nothing was probed: XLA itself has laid out the memory"
            return dataclasses.replace(program, left_out=(*program.left_out, note)), False
        split = self._foresight.splits(batch_size)
        if split not in self._probes:
            self._probes[split] = self._foresight.probe(batch_size)
        return calibrate(program, self._probes[split]), True


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

    `on_size` is told each batch size that is tried. Each takes seconds; few are needed.

    >>> memfit.estimating.largest_batch(model, "2GiB").batch_size
    209
    """
    from memfit.plans.batches import largest_batch_size

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
