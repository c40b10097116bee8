"""A scope in which a model can be run without changing anything, and run again with the same values."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from memfit.models import internals


class Recording(keras.StatelessScope):  # type: ignore[misc]  # Keras is untyped
    """A scope that remembers the value of every variable that is read, and every assignment.

    Weights are read as they are, so that a tape sees them; they do not change before the update.
    """

    def __init__(self, values: dict[int, Any] | None = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.seen: dict[int, Any] = dict(values or {})
        self.updates: dict[int, tuple[Any, Any]] = {}
        self.state_mapping.update(self.seen)
        self._outer = internals.scope_in_force()
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def get_current_value(self, variable: Any) -> Any:
        """What was assigned here, else what it was when it was first read."""
        key = id(variable)
        if key not in self.state_mapping:
            value = internals.backing_variable(variable)
            if self._outer is not None:
                value = self._outer.get_current_value(variable)
            if isinstance(value, tf.Variable) and variable.trainable:
                return value
            self.state_mapping[key] = self.seen[key] = self._read(value)
        return self.state_mapping[key]

    def _read(self, value: Any) -> Any:
        if self._graph is None or not isinstance(value, tf.Variable):
            return tf.convert_to_tensor(value)
        with self._graph.as_default():  # not in the body of a loop, which has a graph of its own
            return value.read_value()

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take an assignment; it is made outside when the segment is through."""
        variable, value = update
        self.state_mapping[id(variable)] = value
        self.updates[id(variable)] = (variable, value)
