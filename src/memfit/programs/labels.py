"""What the operations and variables of a program belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from memfit.records import VariableRole


@dataclass(frozen=True)
class Labels:
    """Names that tell layers, the backward pass and the update apart, and what variables are for."""

    layers: frozenset[str] = frozenset()
    update: str | None = None  # the scope that the optimizer computes in
    roles: dict[int, VariableRole] = field(default_factory=dict)  # of tf.Variables, by identity
    paths: dict[int, str] = field(default_factory=dict)  # likewise, as Keras names them
    present: list[Any] = field(default_factory=list)  # variables that are in memory, whatever a step does

    def in_order_of_creation(self, variables: Iterable[Any]) -> list[Any]:
        """These and what is present, without repetition: of the model, then of the optimizer, then others."""
        order = {identity: number for number, identity in enumerate(self.roles)}
        distinct = {id(variable): variable for variable in (*self.present, *variables)}
        return sorted(distinct.values(), key=lambda variable: order.get(id(variable), len(order)))

    def layer_of(self, name: str) -> str:
        """The layers that an operation or variable belongs to, by the scopes in its name."""
        found = []
        for part in name.split("/")[:-1]:
            plain = part.rstrip("0123456789").removesuffix("_")
            if part in self.layers:
                found.append(part)
            elif plain in self.layers:
                found.append(plain)
        return "/".join(dict.fromkeys(found))

    def is_backward(self, name: str) -> bool:
        """Whether an operation belongs to the backward pass or to the update."""
        return "gradient_tape" in name or (self.update is not None and name.startswith(f"{self.update}/"))
