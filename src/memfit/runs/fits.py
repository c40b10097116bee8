"""`model.fit` through the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.errors import CannotGuard
from memfit.records import Budget, MicroBatchChange, Plan, Run
from memfit.runs.computations import is_keras_own
from memfit.runs.protections import Protection


def fit_guarded(
    model: Any,
    *,
    budget: Budget,
    micro_batch_size: int | None,
    replay: tuple[MicroBatchChange, ...],
    arguments: dict[str, Any],
    plan: Plan | None = None,
    is_planned: bool = False,
    one_phase: bool = False,
    notes: tuple[str, ...] = (),
    at_end: Callable[[Run], None] = lambda run: None,
) -> Any:
    """Keras' own `fit` with the guard attached; its History gets `.run`.

    `at_end` is told what has happened, however it ends.
    """
    protection = Protection(
        model,
        budget=budget,
        micro_batch_size=micro_batch_size,
        is_planned=is_planned,
        one_phase=one_phase,
        replay=replay,
    )
    protection.journal.plan = plan
    for note in notes:
        protection.journal.tell(note)
    if not getattr(model, "compiled", False):
        raise CannotGuard("the model is not compiled", suggestion='model.compile("adam", "mse")')
    if is_keras_own(model, "fit"):
        arguments = protection.hosts.take("fit", arguments, validation=is_keras_own(model, "evaluate"))
    try:
        with protection.attached(keep_steps=True):
            history = model.fit(**arguments)
    finally:
        if plan is not None:
            protection.ladder().forget_whole(plan.batch_size)
        at_end(protection.run)
    history.run = protection.run
    return history
