"""What a plan is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from memfit.errors import InvalidLever, UnusedArgument
from memfit.records import Lever

LEVERS: tuple[Lever, ...] = get_args(Lever)
EXACT: tuple[Lever, ...] = ("micro_batch", "remat")  # what is allowed if nothing is said


@dataclass(frozen=True)
class Wish:
    """A model is to be trained on batches of a size within a budget, with levers that may be pulled."""

    batch_size: int
    budget_bytes: int
    allow: tuple[Lever, ...] = EXACT
    data: Any = None
    float32_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leave:
    """What a plan may do: levers in their own order, and layers that stay in float32."""

    levers: tuple[Lever, ...] = EXACT
    float32_layers: tuple[str, ...] = ()


def leave_for(allow: Iterable[str] | str, float32_layers: Iterable[str] | str) -> Leave:
    """What the user allows; raise unless all of it can be done, and goes together."""
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
    return Leave(tuple(lever for lever in LEVERS if lever in named), layers)


def check_used(leave: Leave, *, planned: bool) -> None:
    """Raise where the user allows something, and no plan is made that could do it."""
    if leave != Leave() and not planned:
        raise UnusedArgument(
            f"{', '.join(leave.levers) or 'nothing'} is allowed, but no plan is made.",
            "Expected a budget, and neither a plan nor a micro-batch size.",
            suggestion='memfit.fit(model, x, y, budget="4GiB", allow=...)',
        )


def _listed(names: Iterable[str] | str | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
