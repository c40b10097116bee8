"""`memfit.plan`: a plan for a batch size, or for the size with the best throughput where it is left open.

Where nothing fits, the error says what would help.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memfit.core.records import Choice, Plan
from memfit.core.records.plans import PlanRequest
from memfit.core.records.programs import Span
from memfit.estimating.estimate_series import largest_batch_size
from memfit.estimating.step_program import check_model
from memfit.graph.trace import no_collection
from memfit.guarding.step.rollback import room_for_old_values
from memfit.planning.nothing_fits import nothing_fits
from memfit.planning.planner import Planner, Tell, find_plan, silent, weigh
from memfit.planning.run_history import runs_that_matter, structure_of
from memfit.planning.search.fastest import Base
from memfit.planning.search.micro_batches import as_guarded
from memfit.planning.search.recomputation import rematerialised
from memfit.planning.variants import StepVariants, variants_of

_REFERENCE = 16  # the batch size that is traced; all others follow from it
_MOST = 2**20
_TRIES = 8
_LOWER = 0.95  # how much smaller each further try is, where a batch turns out not to fit


@dataclass(frozen=True)
class _Way:
    """Batches of one size, taken as a whole."""

    base: Base
    spans: tuple[Span, ...]
    size: int
    seconds_per_sample: float
    one_phase: bool = False


def make_plan(model: Any, request: PlanRequest, tell: Tell = silent) -> Plan:
    """The fastest way to train a model in a budget; nothing is trained, and the model stays as it is."""
    if not request.batch_size:
        return _plan_open_batch_size(model, request, tell)
    past = runs_that_matter(structure_of(model, request), request.budget_bytes)
    plan, planner = find_plan(model, request, tell, past=past)
    if plan is None:
        with no_collection():
            raise nothing_fits(planner)
    return plan


def _plan_open_batch_size(model: Any, request: PlanRequest, tell: Tell) -> Plan:
    """A plan for the batch with the best throughput that fits as a whole; `largest_batch` is the largest.

    Batches are not split here: split, a batch of any size would fit.
    """
    began = time.perf_counter()
    check_model(model)
    allowed = request.allow
    levers = tuple(lever for lever in request.allow if lever != "micro_batch")
    request = dataclasses.replace(request, batch_size=_REFERENCE, allow=levers)
    with no_collection():
        finding = _Finding(model, request, variants_of(model, request, tell), tell)
        ways = finding.ways()
        best = finding.best(ways) or finding.planner(1).within(request.budget_bytes)
        if best is None:
            raise nothing_fits(finding.planner(1))
        largest = finding.largest(ways, best)
    return dataclasses.replace(
        best,
        alternatives=finding.alternatives(ways, best),
        largest_batch=largest.chosen,
        allow=allowed,
        seconds=time.perf_counter() - began,
    )


class _Finding:
    """Looks for the largest batches of one model."""

    def __init__(self, model: Any, request: PlanRequest, steps: StepVariants, tell: Tell) -> None:
        self._model, self._request, self._steps, self._tell = model, request, steps, tell
        self._plans: dict[_Way, Plan | None] = {}
        self._planners: dict[int, Planner] = {}

    def ways(self) -> list[_Way]:
        """The largest batch for each way to change the step, as far as any fits."""
        search = self.planner(self._request.batch_size).search
        found = list[_Way]()
        for base in self._steps.bases:
            for spans in search.levels(base):
                found.extend(self._ways_with(base, spans))
        return found

    def _ways_with(self, base: Base, spans: tuple[Span, ...]) -> Iterator[_Way]:
        """The largest batch with these cuts; without a second phase where only that fits."""
        for one_phase in (False, True):
            size = self._largest(base, spans, one_phase=one_phase)
            if size:
                candidate = self.planner(size).search.candidate(base, size, spans, one_phase=one_phase)
                seconds = candidate.relative_time * self.planner(size).search.plain_seconds / size
                yield _Way(base, spans, size, seconds, one_phase)
                return

    def best(self, ways: list[_Way]) -> Plan | None:
        """A plan for the best throughput that also fits when it is traced; exact before others."""
        ordered = sorted(ways, key=lambda way: (not way.base.exact, way.seconds_per_sample))
        return next(filter(None, map(self._plan_for, ordered)), None)

    def largest(self, ways: list[_Way], known: Plan) -> Plan:
        """A plan for the largest batch of all, traced."""
        for way in sorted(ways, key=lambda way: -way.size):
            found = self._plan_for(way) if way.size > known.batch_size else None
            known = found if found is not None and found.batch_size > known.batch_size else known
        return known

    def alternatives(self, ways: list[_Way], best: Plan) -> tuple[Choice, ...]:
        """All other ways, the largest first."""
        choices = [self._choice(way) for way in sorted(ways, key=lambda way: -way.size)]
        return tuple(one for one in choices if _kind(one) != _kind(best.chosen))

    def planner(self, batch_size: int) -> Planner:
        """The one for batches of this size."""
        if batch_size not in self._planners:
            request = dataclasses.replace(self._request, batch_size=batch_size)
            self._planners[batch_size] = Planner(self._model, request, self._steps, self._tell)
        return self._planners[batch_size]

    def _largest(self, base: Base, spans: tuple[Span, ...], *, one_phase: bool) -> int:
        room_bytes = room_for_old_values(self._request.budget_bytes)

        def needed_bytes(size: int) -> int:
            program = base.program_at(size)
            if spans and base.layers is not None:
                program = rematerialised(program, base.layers, spans)
            return weigh(as_guarded(program, size, None if one_phase else room_bytes)).safe_bytes

        self._tell("Looking for the largest batch")
        return largest_batch_size(needed_bytes, self._request.budget_bytes, most=_MOST)

    def _choice(self, way: _Way) -> Choice:
        planner = self.planner(way.size)
        candidate = planner.search.candidate(way.base, way.size, way.spans, one_phase=way.one_phase)
        return planner.choice(candidate)

    def _plan_for(self, way: _Way) -> Plan | None:
        if way not in self._plans:
            self._plans[way] = self._checked_plan(way)
        return self._plans[way]

    def _checked_plan(self, way: _Way) -> Plan | None:
        budget = self._request.budget_bytes
        for _ in range(_TRIES):
            checked = self.planner(way.size).checked(self._choice(way))
            if checked.choice.safe_bytes <= budget and checked.has_room_in(budget):
                return self.planner(way.size).plan(checked.choice)
            way = dataclasses.replace(way, size=min(way.size - 1, int(_LOWER * way.size)))
            if way.size < 1:
                break
        return None


def _kind(choice: Choice) -> tuple[Any, ...]:
    return (choice.remat, choice.precision, choice.jit_compile)
