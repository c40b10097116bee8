"""A call of `memfit.fit`, as one record that goes from the verb through the plan to the guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.core.records import Budget, MicroBatchChange, Plan, Run


@dataclass(frozen=True)
class FitRequest:
    """The training to run: the model, Keras' own arguments of `fit`, and how the guard shall begin."""

    model: Any
    arguments: dict[str, Any]
    budget: Budget
    plan: Plan | None = None
    micro_batch_size: int | None = None  # to begin with
    is_planned: bool = False  # whether that size comes from a plan: the user gave neither a size nor a run
    one_phase: bool = False
    replay: tuple[MicroBatchChange, ...] = ()
    notes: tuple[str, ...] = ()
    at_first_batch: Callable[[Any, Any], None] | None = None  # called with the guard and the batch
    at_end: Callable[[Run], None] = lambda run: None  # called with the run, however it ends
