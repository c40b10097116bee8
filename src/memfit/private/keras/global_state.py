"""Keras' global state: the stateless scope in force, and the seed behind `keras.random`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.private.patching import replaced
from memfit.private.tensorflow.variables import backing_variable


def scope_in_force() -> Any:
    """The stateless scope that is open, or None."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("stateless_scope")


@contextmanager
def global_seed_outside_scopes() -> Iterator[None]:
    """Let the generator behind `keras.random` without a seed be created, although a scope is open."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    original = seed_generator.global_seed_generator

    def generator() -> Any:
        scope = scope_in_force()
        with ExitStack() as stack:
            if global_state.get_global_attribute("global_seed_generator") is None:
                global_state.set_global_attribute("stateless_scope", None)
                stack.callback(global_state.set_global_attribute, "stateless_scope", scope)
                stack.enter_context(tf.init_scope())
            return original()

    with replaced(seed_generator, "global_seed_generator", generator):
        yield


@contextmanager
def borrowed_global_seed() -> Iterator[None]:
    """Let `keras.random` without a seed work in a trace that is thrown away; no generator stays behind."""
    from keras.src.backend.common import global_state

    name = "global_seed_generator"
    if global_state.get_global_attribute(name) is not None:
        yield
        return
    global_state.set_global_attribute(name, keras.random.SeedGenerator(0))
    try:
        yield
    finally:
        global_state.set_global_attribute(name, None)


class StagedScope(keras.StatelessScope):  # type: ignore[misc]  # Keras is untyped
    """Keras' stateless scope, except that a variable without a staged value is the real one.

    A plain scope gives regularisers None for such a variable, and the tape no handle.
    """

    def __init__(self, staged: list[tuple[Any, Any]]) -> None:
        super().__init__(state_mapping=staged, collect_losses=True, initialize_variables=False)
        self._staged = {id(variable) for variable, _ in staged}
        self.hindrances: list[str] = []
        self.written: dict[int, Any] = {}
        self.strangers: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """The staged value, else the variable itself."""
        value = super().get_current_value(variable)
        return backing_variable(variable) if value is None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take an assignment into the stage, and remember which variable it was for."""
        variable = update[0]
        if variable.trainable and id(variable) not in self._staged:
            self.hindrances.append(f"the step assigns to {variable.path}, which is a trainable weight")
            raise ValueError(self.hindrances[-1])
        if id(variable) not in self._staged:
            self.strangers.append(variable)
        self.written[id(variable)] = variable
        super().add_update(update)


@contextmanager
def outside_scopes() -> Iterator[None]:
    """Create variables for good, although a scope is open and a graph is being traced."""
    from keras.src.backend.common import global_state

    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        with tf.init_scope():
            yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def global_seed_states() -> list[Any]:
    """The state of the generator behind `keras.random` without a seed, once there is one."""
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def global_seed_state() -> Any:
    """The state of the generator behind `keras.random` without a seed, made if there is none yet."""
    from keras.src.random import seed_generator

    return seed_generator.global_seed_generator().state
