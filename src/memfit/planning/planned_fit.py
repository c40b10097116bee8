"""`memfit.fit` with a plan: the plan is checked or made, applied to the model, and its run remembered.

Plans are kept in the cache, so that the second start costs nothing.
"""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from memfit.core import cache
from memfit.core.records import Plan, Run
from memfit.core.records.plans import AllowedLevers, PlanRequest, check_used, in_words
from memfit.core.units import format_size
from memfit.guarding.fit_request import FitRequest
from memfit.guarding.protection import fit_guarded, has_been_trained
from memfit.guarding.splittability import examine
from memfit.guarding.step.batches import DeviceBatch
from memfit.guarding.step.computation import ModelStep
from memfit.guarding.step.rollback import size_of
from memfit.machine import limit_in_force
from memfit.machine.limits import bytes_in_use
from memfit.model.snapshots import draws_put_back
from memfit.model.training_data import batch_specs, batches_of, samples_of, takes_batch_size
from memfit.planning.ample import is_ample
from memfit.planning.planner import check_layers, find_plan
from memfit.planning.run_history import aim_of, check_plan, key_of, remember, runs_that_matter, structure_of
from memfit.planning.variants import pulled
from memfit.private.keras.trainer import build_everything
from memfit.private.tensorflow.variables import backing_variable

logger = logging.getLogger("memfit")

_SAMPLES = 8  # that layers are tried on in float16, and splits
_STEPS = 32  # of a limit, by which what others hold is told


def fit_planned(request: FitRequest, allowed: AllowedLevers, *, has_budget: bool, may_plan: bool) -> Any:
    """Train as the plan of a request says, or as one that is made for it; else with the guard alone.

    A plan is made, where it may be, for a budget that the user gave, or for the limit in force unless that
    is plainly enough.
    """
    if limit_in_force() is not None and not has_been_trained(request.model):
        gc.collect()  # models of before, in loops and searches: they hold themselves
    request = _with_plan(request, allowed, has_budget=has_budget, may_plan=may_plan)
    with PlannedModel(request.model, request.plan, request.arguments) as planned:
        by_plan = request.is_planned and request.plan is not None
        size = planned.micro_batch_size if by_plan else request.micro_batch_size
        return fit_guarded(
            replace(
                request,
                micro_batch_size=size,
                one_phase=planned.one_phase,
                notes=(*request.notes, *planned.notes),
                at_end=planned.remember,
            )
        )


def _with_plan(
    request: FitRequest, allowed: AllowedLevers, *, has_budget: bool, may_plan: bool
) -> FitRequest:
    """The request with its plan checked, or made where it has none."""
    model, arguments, budget_bytes = request.model, request.arguments, request.budget.budget_bytes
    is_to_be_planned = may_plan and request.plan is None and request.is_planned
    is_limited = limit_in_force() is not None
    check_used(allowed, planned=is_to_be_planned and (has_budget or is_limited))
    if request.plan is not None:
        check_plan(model, request.plan, arguments, budget_bytes if has_budget else None)
        if takes_batch_size(arguments["x"]):
            arguments = {**arguments, "batch_size": request.plan.batch_size}
        return replace(request, arguments=arguments)
    if is_to_be_planned and (has_budget or is_limited):
        _build(model, arguments)
    if not has_budget:
        budget_bytes = _worth_planning_for(model, arguments, budget_bytes) if is_limited else 0
    if not is_to_be_planned or not budget_bytes:
        return request
    allowed = _without_splits_that_fail(model, arguments, allowed)
    start = plan_for_fit(model, arguments, budget_bytes, allowed)
    if start.plan is not None:
        return replace(request, plan=start.plan)
    size, how = start.micro_batch_size, "The guard alone sees to it"
    if size is not None:
        how = f"Training starts with micro-batches of {size}, which may fit"
    note = f"No plan was made: {start.why_not}. {how}."
    return replace(request, micro_batch_size=size, notes=(*request.notes, note))


def _build(model: Any, arguments: dict[str, Any]) -> None:
    """Have Keras build a model as `fit` is about to, where its data say the shapes: a plan needs them."""
    if getattr(model, "built", False) or not getattr(model, "compiled", False):
        return
    try:
        data = batches_of(arguments)[1]
        if data is not None:
            build_everything(model, batch_specs(data))
    except Exception:
        logger.debug("The model could not be built before its first batch.", exc_info=True)


def _without_splits_that_fail(model: Any, arguments: dict[str, Any], allowed: AllowedLevers) -> AllowedLevers:
    """The levers without micro-batches, where a few samples show that the parts of a batch do not add up.

    A loss of the user's own may compare samples with each other; only trying it tells.
    """
    samples = samples_of(arguments, _SAMPLES)
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


def _worth_planning_for(model: Any, arguments: dict[str, Any], limit_bytes: int) -> int:
    """The bytes that a model can have under a limit; none where they are plainly enough."""
    if not getattr(model, "built", False):
        return limit_bytes
    free_bytes, (size, _) = limit_bytes - _held_by_others(model, limit_bytes), batches_of(arguments)
    return 0 if size and is_ample(model, size, free_bytes) else free_bytes


def _held_by_others(model: Any, limit_bytes: int) -> int:
    """The bytes in use on the device that are not the model's, in steps, so that plans can be kept."""
    step = max(1, limit_bytes // _STEPS)
    own = sum(size_of(backing_variable(variable)) for variable in model.variables)
    return max(0, (bytes_in_use() or 0) - own) // step * step


@dataclass(frozen=True)
class Start:
    """The start of a training: a plan; or without one, why, and the micro-batch size that may fit."""

    plan: Plan | None = None
    why_not: str = ""
    micro_batch_size: int | None = None


def plan_for_fit(model: Any, arguments: dict[str, Any], budget_bytes: int, allowed: AllowedLevers) -> Start:
    """The start of a call of `fit`: with a plan, from the cache if there is one, wherever one can be had."""
    if not getattr(model, "compiled", False):
        return Start(why_not="the model is not compiled")
    if not model.built:
        return Start(why_not="the model has not been built")
    check_layers(model, allowed.float32_layers)
    try:
        return _start(model, _plan_request(arguments, budget_bytes, allowed))
    except Exception as error:
        logger.debug("No plan was made.", exc_info=True)
        why_not = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].removesuffix('.')}"
        return Start(why_not=why_not)


def _start(model: Any, request: PlanRequest | None) -> Start:
    if request is None:
        return Start(why_not="the size of its batches is not known beforehand")
    structure, budget = structure_of(model, request), format_size(request.budget_bytes)
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


def _plan_request(arguments: dict[str, Any], budget_bytes: int, allowed: AllowedLevers) -> PlanRequest | None:
    size, data = batches_of(arguments)
    if size is None:
        return None
    return PlanRequest(size, budget_bytes, allowed.levers, data, allowed.float32_layers)


class PlannedModel:
    """A model as a plan has it, while `fit` runs; afterwards it is as before.

    Without a plan, nothing happens.
    """

    def __init__(self, model: Any, plan: Plan | None, arguments: dict[str, Any]) -> None:
        self._model, self._plan, self._arguments = model, plan, arguments
        self._levers = ExitStack()
        self._structure = None if plan is None else self._structure_for(plan)
        self.notes: tuple[str, ...] = ()
        self.micro_batch_size = None if plan is None else plan.chosen.micro_batch_size
        self.one_phase = plan is not None and plan.chosen.one_phase

    def __enter__(self) -> Self:
        if self._plan is None or self._plan.fits_as_is:
            return self
        chosen = self._plan.chosen
        self.notes = (f"To stay within {format_size(self._plan.budget_bytes)}: {in_words(chosen)}.",)
        few = max(1, min(_SAMPLES, chosen.micro_batch_size // 4))  # layer by layer, they need more each
        is_float16 = chosen.precision == "mixed_float16"
        samples = samples_of(self._arguments, few) if is_float16 else None
        with ExitStack() as levers:
            self.notes += levers.enter_context(pulled(self._model, chosen, samples))
            self._levers = levers.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._levers.close()

    def remember(self, run: Run) -> None:
        """Keep what a run has measured for the next plan."""
        if self._plan is not None:
            remember(self._structure, self._plan, run)

    def _structure_for(self, plan: Plan) -> str | None:
        """As it is before training, which changes what a model is written down as."""
        request = _plan_request(self._arguments, plan.budget_bytes, AllowedLevers())
        return None if request is None else structure_of(self._model, request)
