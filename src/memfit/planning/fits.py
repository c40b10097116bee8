"""Plans for calls of `fit`: kept, so that the second start costs nothing."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Self

from memfit import caches
from memfit.planning.batches import batches_of, samples_of
from memfit.planning.fingerprints import key_of, structure_of
from memfit.planning.levers import pulled
from memfit.planning.making import check_layers, plan_or_none
from memfit.planning.memories import remember, runs_that_matter
from memfit.planning.wishes import Leave, Wish
from memfit.plans.measurements import aim_of
from memfit.records import Plan, Run
from memfit.reports.plans import in_words
from memfit.units import format_size

logger = logging.getLogger("memfit")

_SAMPLES = 8  # that layers are tried on in float16


def plan_for_fit(
    model: Any, arguments: dict[str, Any], budget_bytes: int, leave: Leave
) -> tuple[Plan | None, str]:
    """A plan for a call of `fit`, from the cache if there is one; None and why where there is none."""
    if not getattr(model, "compiled", False):
        return None, "the model is not compiled"
    if not model.built:
        return None, "the model has not been built"
    check_layers(model, leave.float32_layers)
    try:
        return _plan(model, _wish(arguments, budget_bytes, leave))
    except Exception as error:
        logger.debug("No plan was made.", exc_info=True)
        return None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].removesuffix('.')}"


def _plan(model: Any, wish: Wish | None) -> tuple[Plan | None, str]:
    if wish is None:
        return None, "the size of its batches is not known beforehand"
    structure, budget = structure_of(model, wish), format_size(wish.budget_bytes)
    past = runs_that_matter(structure, wish.budget_bytes)
    key = None if structure is None else key_of(structure, wish, aim_of(wish.budget_bytes, past))
    plan = None if key is None else caches.recall(Plan, key)
    if plan is not None:
        return plan, ""
    logger.info("Planning for batches of %d in %s.", wish.batch_size, budget)
    plan = plan_or_none(model, wish, past=past)
    if plan is None:
        return None, f"nothing allowed fits a batch of {wish.batch_size} in {budget} for sure"
    if key is not None:
        caches.keep(key, plan)
    return plan, ""


def _wish(arguments: dict[str, Any], budget_bytes: int, leave: Leave) -> Wish | None:
    size, data = batches_of(arguments)
    return None if size is None else Wish(size, budget_bytes, leave.levers, data, leave.float32_layers)


class Planned:
    """A model as a plan has it, while `fit` runs; afterwards it is as before, and what the run measured kept.

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

    def keep(self, run: Run) -> None:
        """Keep what a run has measured for the next plan."""
        if self._plan is not None:
            remember(self._structure, self._plan, run)

    def _structure_for(self, plan: Plan) -> str | None:
        """As it is before training, which changes what a model is written down as."""
        wish = _wish(self._arguments, plan.budget_bytes, Leave())
        return None if wish is None else structure_of(self._model, wish)
