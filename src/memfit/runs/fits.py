"""`model.fit` through the guard."""

from __future__ import annotations

from typing import Any

from memfit.errors import CannotGuard
from memfit.records import Budget, MicroBatchChange, Plan
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
    notes: tuple[str, ...] = (),
) -> Any:
    """Keras' own `fit` with the guard attached; its History gets `.run`."""
    protection = Protection(model, budget=budget, micro_batch_size=micro_batch_size, replay=replay)
    protection.journal.plan = plan
    for note in notes:
        protection.journal.tell(note)
    if not getattr(model, "compiled", False):
        raise CannotGuard("the model is not compiled", suggestion='model.compile("adam", "mse")')
    if is_keras_own(model, "fit"):
        arguments = protection.hosts.take("fit", arguments, validation=is_keras_own(model, "evaluate"))
    with protection.attached(keep_steps=True):
        history = model.fit(**arguments)
    history.run = protection.run
    return history
