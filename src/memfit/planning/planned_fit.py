"""`memfit.fit` with a plan: the plan is checked or made, applied to the model, and its run remembered.

Plans are kept in the cache, so that the second start costs nothing.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from memfit.core import cache
from memfit.core.records import Plan, Run
from memfit.core.records.plans import AllowedLevers, PlanRequest, check_used, in_words
from memfit.core.units import format_size
from memfit.guarding.fit_request import FitRequest
from memfit.guarding.protection import Protection, fit_guarded, has_been_trained
from memfit.guarding.splittability import examine
from memfit.guarding.step.batches import Batch, DeviceBatch
from memfit.guarding.step.computation import ModelStep
from memfit.guarding.step.rollback import size_of
from memfit.machine import limit_in_force
from memfit.machine.limits import bytes_in_use
from memfit.model.snapshots import draws_put_back
from memfit.model.training_data import (
    WholeBatch,
    batches_of,
    samples_of,
    takes_batch_size,
    training_specs,
)
from memfit.planning.ample import is_ample
from memfit.planning.planner import check_layers, find_plan
from memfit.planning.run_history import (
    aim_of,
    check_plan,
    fingerprint_of,
    key_of,
    remember,
    runs_that_matter,
    structure_of,
)
from memfit.planning.variants import pulled
from memfit.private.keras.trainer import compiled_parts
from memfit.private.tensorflow.variables import backing_variable

logger = logging.getLogger("memfit")

_SAMPLES = 8  # that layers are tried on in float16, and splits
_STEPS = 32  # of a limit, by which what others hold is told


def fit_planned(request: FitRequest, allowed: AllowedLevers, *, has_budget: bool, may_plan: bool) -> Any:
    """Train as the plan of a request says, or as one that is made for it; else with the guard alone.

    A plan is made, where it may be, for a budget that the user gave, or for the limit in force unless that
    is plainly enough. A model that is not built yet, or batches of a size that is not known, are planned for
    when the first batch is there.
    """
    if limit_in_force() is not None and not has_been_trained(request.model):
        gc.collect()  # models of before, in loops and searches: they hold themselves
    planning = FitPlanning(request, allowed, has_budget=has_budget, may_plan=may_plan)
    with planning.levers:
        return fit_guarded(planning.request())


@dataclass(frozen=True)
class KnownBatches:
    """The batches of a training, as far as they are known: their size, one of them, and some samples."""

    size: int | None
    data: Any
    samples: Callable[[int], Any]  # so many of the first; None where they cannot be had without taking them

    @classmethod
    def of_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Those of a call of `fit`, before it begins."""
        return cls(*batches_of(arguments), partial(samples_of, arguments))

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Those like the first one."""

        def samples(count: int) -> Any:
            part = batch.part(0, min(count, batch.size))
            return part if isinstance(part, tuple) else (part,)

        return cls(batch.size, WholeBatch(samples(1)), samples)

    def request(self, budget_bytes: int, allowed: AllowedLevers) -> PlanRequest | None:
        """The request for a plan; None while the size is not known."""
        if self.size is None:
            return None
        return PlanRequest(self.size, budget_bytes, allowed.levers, self.data, allowed.float32_layers)


class FitPlanning:
    """The plan of one training: given, made before it begins, made at its first batch, or none."""

    def __init__(
        self, request: FitRequest, allowed: AllowedLevers, *, has_budget: bool, may_plan: bool
    ) -> None:
        self.levers = ExitStack()  # that are pulled, to be undone at the end
        self._request, self._allowed, self._has_budget = request, allowed, has_budget
        self._model = request.model
        self._planned: PlannedModel | None = None
        is_possible = has_budget or limit_in_force() is not None
        self._makes_plan = may_plan and request.plan is None and request.is_planned and is_possible
        check_used(allowed, planned=self._makes_plan)

    def request(self) -> FitRequest:
        """The request as the guard takes it."""
        request, plan = replace(self._request, at_end=self._remember), self._request.plan
        if plan is None and not self._makes_plan:
            return request
        known = KnownBatches.of_arguments(request.arguments)
        if plan is not None:
            is_of_built = not self._model.built and plan.fingerprint != fingerprint_of(self._model)
            if not is_of_built:
                self._check_plan(plan)
            if takes_batch_size(request.arguments["x"]) and request.arguments.get("batch_size") is None:
                request = replace(request, arguments={**request.arguments, "batch_size": plan.batch_size})
            if is_of_built:
                return replace(request, at_first_batch=self.at_first_batch)
            return self._following(request, plan, known)
        if getattr(self._model, "compiled", False) and (not self._model.built or known.size is None):
            return replace(request, at_first_batch=self.at_first_batch)
        start = self._start(known)
        if start.plan is not None:
            return self._following(request, start.plan, known)
        return replace(request, micro_batch_size=start.micro_batch_size, notes=(*request.notes, *start.notes))

    def at_first_batch(self, protection: Protection, batch: Batch) -> None:
        """Check or make the plan now that the model is built, and have the guard follow it."""
        known, plan = KnownBatches.of(batch), self._request.plan
        start = Start()
        if plan is not None:
            self._check_plan(plan)
        else:
            start = self._start(known)
        followed = self._following(self._request, plan or start.plan, known)
        protection.follow(followed.plan, (*start.notes, *followed.notes[len(self._request.notes) :]))
        if followed.plan is None:
            protection.begin_at(start.micro_batch_size)
        elif self._request.is_planned:
            protection.begin_at(followed.micro_batch_size, one_phase=followed.one_phase)

    def _check_plan(self, plan: Plan) -> None:
        budget_bytes = self._request.budget.budget_bytes if self._has_budget else None
        check_plan(self._model, plan, self._request.arguments, budget_bytes)

    def _start(self, known: KnownBatches) -> Start:
        """The start of the training: with a plan where one is worth while and can be had."""
        budget_bytes = self._request.budget.budget_bytes
        if not self._has_budget:
            budget_bytes = _worth_planning_for(self._model, known.size, budget_bytes)
        if not budget_bytes:
            return Start()
        allowed = _without_splits_that_fail(self._model, known, self._allowed)
        return plan_for_fit(self._model, known, budget_bytes, allowed)

    def _following(self, request: FitRequest, plan: Plan | None, known: KnownBatches) -> FitRequest:
        """The request with the levers of a plan pulled."""
        if plan is None:
            return request
        planned = self._planned = self.levers.enter_context(PlannedModel(self._model, plan, known))
        return replace(
            request,
            plan=plan,
            micro_batch_size=planned.micro_batch_size if request.is_planned else request.micro_batch_size,
            one_phase=planned.one_phase,
            notes=(*request.notes, *planned.notes),
        )

    def _remember(self, run: Run) -> None:
        if self._planned is not None:
            self._planned.remember(run)


def _without_splits_that_fail(model: Any, known: KnownBatches, allowed: AllowedLevers) -> AllowedLevers:
    """The levers without micro-batches, where a few samples show that the parts of a batch do not add up.

    A loss of the user's own may compare samples with each other; only trying it tells.
    """
    samples = known.samples(_SAMPLES)
    ready = getattr(model, "compiled", False) and getattr(model, "built", False)
    if "micro_batch" not in allowed.levers or samples is None or not ready:
        return allowed
    computation = ModelStep(model, "train_step")
    if computation.doubts() is None:
        return allowed
    try:
        with draws_put_back():
            reason = examine(computation, DeviceBatch.of(samples)).why_not_split
    except Exception:
        logger.debug("Splitting could not be tried.", exc_info=True)
        return allowed
    if reason is None:
        return allowed
    return replace(allowed, levers=tuple(lever for lever in allowed.levers if lever != "micro_batch"))


def _worth_planning_for(model: Any, batch_size: int | None, limit_bytes: int) -> int:
    """The bytes that a model can have under a limit; none where they are plainly enough."""
    if not getattr(model, "built", False):
        return limit_bytes
    free_bytes = limit_bytes - _held_by_others(model, limit_bytes)
    return 0 if batch_size and is_ample(model, batch_size, free_bytes) else free_bytes


def _held_by_others(model: Any, limit_bytes: int) -> int:
    """The bytes in use on the device that are not the model's, in steps, so that plans can be kept."""
    step = max(1, limit_bytes // _STEPS)
    own = sum(size_of(backing_variable(variable)) for variable in model.variables)
    return max(0, (bytes_in_use() or 0) - own) // step * step


@dataclass(frozen=True)
class Start:
    """The start of a training: a plan; or without one, why, and the micro-batch size that may fit."""

    plan: Plan | None = None
    why_not: str = ""  # empty where none is needed
    micro_batch_size: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The note that no plan was made, and how training starts instead."""
        size, how = self.micro_batch_size, "The guard alone sees to it"
        if size is not None:
            how = f"Training starts with micro-batches of {size}, which may fit"
        return (f"No plan was made: {self.why_not}. {how}.",) if self.why_not else ()


def plan_for_fit(model: Any, known: KnownBatches, budget_bytes: int, allowed: AllowedLevers) -> Start:
    """The start of a call of `fit`: with a plan, from the cache if there is one, wherever one can be had."""
    if not getattr(model, "compiled", False):
        return Start(why_not="the model is not compiled")
    check_layers(model, allowed.float32_layers)
    try:
        return _start(model, known.request(budget_bytes, allowed))
    except Exception as error:
        logger.debug("No plan was made.", exc_info=True)
        why_not = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].removesuffix('.')}"
        return Start(why_not=why_not)


def _start(model: Any, request: PlanRequest | None) -> Start:
    if request is None:
        return Start(why_not="the size of its batches is not known beforehand")
    structure = structure_of(model, request)
    if structure is not None:
        return _start_anew(model, request, structure)
    # Nothing tells this model apart but itself: that has to do for a loop that calls `fit` again and again.
    asked = _what_is_asked(model, request)
    last: tuple[Any, Start] | None = vars(model).get(_LAST)
    if last is None or last[0] != asked:
        last = vars(model)[_LAST] = (asked, _start_anew(model, request, None))
    return last[1]


_LAST = "_memfit_last_start"  # the name under which a model keeps it


def _what_is_asked(model: Any, request: PlanRequest) -> Any:
    """All that the start of a training of the same model depends on."""
    data = repr(training_specs(model, request.data))
    numbers = (request.batch_size, request.budget_bytes, request.allow, request.float32_layers)
    return fingerprint_of(model), data, numbers, tuple(map(id, compiled_parts(model))), model.jit_compile


def _start_anew(model: Any, request: PlanRequest, structure: str | None) -> Start:
    budget = format_size(request.budget_bytes)
    past = runs_that_matter(structure, request.budget_bytes)
    key = None if structure is None else key_of(structure, request, aim_of(request.budget_bytes, past))
    plan = None if key is None else cache.recall(Plan, key)
    if plan is not None:
        return Start(plan)
    logger.info("Planning for batches of %d in %s.", request.batch_size, budget)
    plan, planner = find_plan(model, request, past=past)
    if plan is None:
        why_not = f"nothing allowed fits a batch of {request.batch_size} in {budget} for sure"
        return Start(None, why_not, planner.likely_micro_batch(request.budget_bytes))
    if key is not None:
        cache.keep(key, plan)
    return Start(plan)


class PlannedModel:
    """A model as a plan has it, while `fit` runs; afterwards it is as before."""

    def __init__(self, model: Any, plan: Plan, known: KnownBatches) -> None:
        self._model, self._plan, self._known = model, plan, known
        self._levers = ExitStack()
        self._structure = self._structure_for(plan)
        self.notes: tuple[str, ...] = ()
        self.micro_batch_size = plan.chosen.micro_batch_size
        self.one_phase = plan.chosen.one_phase

    def __enter__(self) -> Self:
        if self._plan.fits_as_is:
            return self
        chosen = self._plan.chosen
        self.notes = (f"To stay within {format_size(self._plan.budget_bytes)}: {in_words(chosen)}.",)
        few = max(1, min(_SAMPLES, chosen.micro_batch_size // 4))  # layer by layer, they need more each
        is_float16 = chosen.precision == "mixed_float16"
        samples = self._known.samples(few) if is_float16 else None
        with ExitStack() as levers:
            self.notes += levers.enter_context(pulled(self._model, chosen, samples))
            self._levers = levers.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._levers.close()

    def remember(self, run: Run) -> None:
        """Keep what a run has measured for the next plan."""
        if run.ooms:
            vars(self._model).pop(_LAST, None)
        remember(self._structure, self._plan, run)

    def _structure_for(self, plan: Plan) -> str | None:
        """As it is before training, which changes what a model is written down as."""
        request = self._known.request(plan.budget_bytes, AllowedLevers())
        return None if request is None else structure_of(self._model, request)
