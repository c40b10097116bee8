"""The stage: private copies of everything that a train step moves besides the weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.runs.keras_internals import StagedScope, backing_variable


def distinct(variables: list[Any], *, but: list[Any] | None = None) -> list[Any]:
    """Variables without repetition and without `but`, in order."""
    left_out = {id(variable) for variable in but or ()}
    return list({id(variable): variable for variable in variables if id(variable) not in left_out}.values())


class Stage:
    """Staged copies of BatchNorm statistics, seeds and metrics; its methods run eagerly or while tracing."""

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        self._copies = {
            id(variable): tf.Variable(backing_variable(variable).read_value(), trainable=False)
            for variable in variables
        }

    def load(self) -> None:
        """Begin again from what the model holds."""
        for variable in self.variables:
            self._copies[id(variable)].assign(backing_variable(variable).read_value())

    def scope(self) -> StagedScope:
        """A scope in which the variables have their staged values, and assignments stay inside."""
        return StagedScope(
            [(variable, self._copies[id(variable)].read_value()) for variable in self.variables]
        )

    def keep(self, scope: StagedScope) -> None:
        """Take what was assigned inside a scope."""
        for variable in scope.written.values():
            self._copies[id(variable)].assign(scope.get_current_value(variable))

    def publish(self) -> None:
        """Give the model what is on the stage."""
        for variable in self.variables:
            backing_variable(variable).assign(self._copies[id(variable)].read_value())
