"""Model + wish -> Plan, or what would help where nothing fits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from memfit.garbage import no_collection
from memfit.planning.bases import steps_for
from memfit.planning.planners import Planner, Tell, silent
from memfit.planning.shortfalls import nothing_fits
from memfit.planning.wishes import Wish
from memfit.plans.measurements import aim_of
from memfit.programs.training import check_model
from memfit.records import Measured, Plan
from memfit.runs.kept_layers import Layers

_TIGHT = "Runs of before needed more than foreseen, and nothing smaller was found."


def make_plan(model: Any, wish: Wish, tell: Tell = silent, *, past: Sequence[Measured] = ()) -> Plan:
    """The fastest way to train a model in a budget; nothing is trained, and the model stays as it is.

    `past` are runs of before that the plan goes by. Where nothing fits, the error says what would help.
    """
    with no_collection():
        plan, planner = _found(model, wish, tell, past)
        if plan is None:
            raise nothing_fits(planner)
    return plan


def plan_or_none(model: Any, wish: Wish, *, past: Sequence[Measured] = ()) -> Plan | None:
    """The same where nobody asks what would help."""
    with no_collection():
        return _found(model, wish, silent, past)[0]


def check_layers(model: Any, names: Sequence[str]) -> None:
    """Raise unless a model has layers of these names."""
    for name in names:
        Layers(model).named(name)


def _found(model: Any, wish: Wish, tell: Tell, past: Sequence[Measured]) -> tuple[Plan | None, Planner]:
    began = time.perf_counter()
    check_model(model)
    check_layers(model, wish.float32_layers)
    planner = Planner(model, wish, steps_for(model, wish, tell), tell)
    aim = aim_of(wish.budget_bytes, past)
    plan = planner.within(aim)
    if plan is None and aim < wish.budget_bytes:
        plan = planner.within(wish.budget_bytes, _TIGHT)
    if plan is not None:
        seconds = time.perf_counter() - began
        plan = dataclasses.replace(plan, seconds=seconds, measured=tuple(past))
    return plan, planner
