"""The stage: private copies of everything that a step moves besides the weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.runs.keras_internals import StagedScope, backing_variable

Moved = dict[str, Any]  # place of the variable -> its value


def distinct(variables: list[Any], *, but: list[Any] | None = None) -> list[Any]:
    """Variables without repetition and without `but`, in order."""
    left_out = {id(variable) for variable in but or ()}
    return list({id(variable): variable for variable in variables if id(variable) not in left_out}.values())


class Stage:
    """Staged values of BatchNorm statistics, seeds and metrics; its methods run eagerly or while tracing.

    A copy is made only of what a step really writes.
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        self.written: set[int] = set()  # places of what the parts of this step have written so far
        self._copies: dict[int, Any] = {}

    def extend(self, strangers: list[Any]) -> None:
        """Take more variables onto the stage: what a step assigns to although nobody tracks it."""
        self.variables = distinct([*self.variables, *strangers])

    def real_values(self) -> list[Any]:
        """What the model holds."""
        return [backing_variable(variable).read_value() for variable in self.variables]

    def staged_values(self, written: set[int]) -> list[Any]:
        """What the parts so far have left at these places; elsewhere, what the model holds."""
        return [
            (self._copies[place] if place in written else backing_variable(variable)).read_value()
            for place, variable in enumerate(self.variables)
        ]

    def scope(self, values: list[Any]) -> StagedScope:
        """A scope in which the variables have these values, and assignments stay inside.

        There are fewer values than variables where TensorFlow traces a function twice and the first time has
        brought more onto the stage.
        """
        return StagedScope(list(zip(self.variables, values, strict=False)))

    def moved(self, scope: StagedScope) -> Moved:
        """What was assigned inside a scope."""
        return {
            str(place): scope.get_current_value(variable)
            for place, variable in enumerate(self.variables)
            if id(variable) in scope.written
        }

    def keep(self, moved: Moved) -> None:
        """Take what a part has moved; while tracing, copies are made where there are none."""
        for name, value in moved.items():
            place = int(name)
            if place not in self._copies:
                with tf.init_scope():
                    self._copies[place] = tf.Variable(
                        backing_variable(self.variables[place]).read_value(), trainable=False
                    )
            self._copies[place].assign(value)

    def moves(self, name: str) -> bool:
        """Whether a step moves a variable of this name."""
        return any(self.variables[place].path.rpartition("/")[2] == name for place in self.written)

    def publish(self) -> None:
        """Give the model what the parts of this step have written."""
        for place in sorted(self.written):
            backing_variable(self.variables[place]).assign(self._copies[place].read_value())
