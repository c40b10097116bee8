"""The request for a plan, and the levers that it allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from memfit.core.errors import InvalidLever, UnusedArgument
from memfit.core.records import Lever

LEVERS: tuple[Lever, ...] = get_args(Lever)
EXACT: tuple[Lever, ...] = ("micro_batch", "remat")  # the levers that are allowed by default


@dataclass(frozen=True)
class PlanRequest:
    """A model is to be trained on batches of a size within a budget, with levers that may be pulled."""

    batch_size: int
    budget_bytes: int
    allow: tuple[Lever, ...] = EXACT
    data: Any = None
    float32_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AllowedLevers:
    """The levers that a plan may pull, in their own order, and the layers that stay in float32."""

    levers: tuple[Lever, ...] = EXACT
    float32_layers: tuple[str, ...] = ()


def allowed_levers(allow: Iterable[str] | str, float32_layers: Iterable[str] | str) -> AllowedLevers:
    """The levers that the user allows; raise unless all of them are known and go together."""
    named, layers = _listed(allow), _listed(float32_layers)
    for name in named:
        if name not in LEVERS:
            raise InvalidLever(name, known=LEVERS)
    if layers and "precision" not in named:
        raise UnusedArgument(
            f"{', '.join(layers)} shall stay in float32, but no lower precision is allowed.",
            f"Expected precision among the levers, received {', '.join(named) or 'none'}.",
            suggestion=f"allow={(*named, 'precision')!r}",
        )
    return AllowedLevers(tuple(lever for lever in LEVERS if lever in named), layers)


def check_used(leave: AllowedLevers, *, planned: bool) -> None:
    """Raise where the user allows something, and no plan is made that could do it."""
    if leave != AllowedLevers() and not planned:
        raise UnusedArgument(
            f"{', '.join(leave.levers) or 'nothing'} is allowed, but no plan is made.",
            "Expected a budget, and neither a plan nor a micro-batch size.",
            suggestion='memfit.fit(model, x, y, budget="4GiB", allow=...)',
        )


def _listed(names: Iterable[str] | str | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
