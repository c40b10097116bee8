"""What the operations and variables of a program belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from memfit.models.internals import CalledLayers
from memfit.records import VariableRole

_BACKWARD = "gradient_tape/"


@dataclass(frozen=True)
class Labels:
    """Names that tell layers, the backward pass and the update apart, and what variables are for."""

    layers: CalledLayers = field(default_factory=CalledLayers)
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
        """The layer that an operation belongs to, by the innermost scope in its name; "" for none."""
        scope = name.removeprefix(_BACKWARD)
        while "/" in scope:
            scope = scope.rpartition("/")[0]
            if scope in self.layers.by_scope:
                return self.layers.by_scope[scope]
        return ""

    def is_backward(self, name: str) -> bool:
        """Whether an operation belongs to the backward pass or to the update."""
        return _BACKWARD in name or (self.update is not None and name.startswith(f"{self.update}/"))
