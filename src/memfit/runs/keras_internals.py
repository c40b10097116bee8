"""Every private name of Keras that guarded training relies on, each behind a function.

`tests/facts/test_keras_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from memfit.errors import CannotGuard


class StagedScope(keras.StatelessScope):  # type: ignore[misc]  # Keras is untyped
    """Keras' stateless scope, except that a variable without a staged value is the real one.

    A plain scope gives regularisers None for such a variable, and the tape no handle.
    """

    def __init__(self, staged: list[tuple[Any, Any]]) -> None:
        super().__init__(state_mapping=staged, collect_losses=True, initialize_variables=False)
        self._staged = {id(variable) for variable, _ in staged}
        self.written: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        """The staged value, else the variable itself."""
        value = super().get_current_value(variable)
        return backing_variable(variable) if value is None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take an assignment into the stage, and remember which variable it was for."""
        variable = update[0]
        if id(variable) not in self._staged:
            raise CannotGuard(
                f"its train step assigns to {variable.path}, which is "
                + ("a trainable weight" if variable.trainable else "no variable that the model tracks"),
                suggestion="self.add_weight(..., trainable=False) for what a layer assigns to",
            )
        self.written[id(variable)] = variable
        super().add_update(update)


def backing_variable(variable: Any) -> Any:
    """The tf.Variable behind a Keras variable, whatever scope is open."""
    return variable._value


def build_everything(model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Create all variables of model, loss, metrics and optimizer from the shapes of a batch.

    The batch dimension stays open: a model that is built now must take batches of every size later.
    """

    def symbolic(leaf: Any) -> Any:
        return None if leaf is None else keras.KerasTensor((None, *leaf.shape[1:]), leaf.dtype)

    model._symbolic_build(data_batch=keras.tree.map_structure(symbolic, batch))


def loss_tracker(model: Any) -> Any:
    """The metric that averages the loss over an epoch."""
    return model._loss_tracker


def compiled_loss(model: Any) -> Any:
    """The object that adds up the losses of all outputs, or None without a compiled loss."""
    return model._compile_loss


def output_trackers(model: Any) -> list[Any]:
    """The metrics that average the loss of each output; empty with one output."""
    compiled = compiled_loss(model)
    return [] if compiled is None else list(compiled.metrics)


def all_layers(model: Any) -> list[Any]:
    """Every layer of a model, nested ones too."""
    return list(model._flatten_layers(include_self=False))


def global_seed_states() -> list[Any]:
    """The state of the generator behind `keras.random` without a seed, once there is one."""
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def seed_of(layer: Any) -> Any:
    """The generator of a layer that draws random numbers, or None."""
    return getattr(layer, "seed_generator", None)


def output_losses(model: Any) -> list[Any]:
    """The loss object of each output, in order; known once the model is built."""
    compiled = compiled_loss(model)
    return [] if compiled is None else [entry.loss for entry in compiled._flat_losses]


def aggregate_added_loss(model: Any, loss: Any) -> Any:
    """A loss from `add_loss` or a regulariser as the scalar that Keras adds to the total."""
    return model._aggregate_additional_loss(loss)


def mask_of(tensor: Any) -> Any:
    """The mask that a layer attached to its output, or None."""
    return getattr(tensor, "_keras_mask", None)


def strategy_of(model: Any) -> Any:
    """The distribution strategy that the model was created under, or None."""
    return model._distribute_strategy


@contextmanager
def overridden(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a method on one instance for a while, past Keras' attribute tracking."""
    attributes = vars(owner)
    before = attributes.get(name)
    attributes[name] = function
    try:
        yield
    finally:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before
