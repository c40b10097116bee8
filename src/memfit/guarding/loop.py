"""`memfit.step`: the guarded step for loops that the user writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memfit.core.errors import CannotGuard
from memfit.core.records import Budget, Run
from memfit.guarding.guard import Guard, Guarded
from memfit.guarding.micro_batch_size import Ladder
from memfit.guarding.run_notes import RunNotes, start_counting_the_peak
from memfit.guarding.step.batches import DeviceBatch
from memfit.guarding.step.computation import LossFunction


class LoopStep:
    """Computes the loss of a batch and updates the variables, split and retried as needed."""

    def __init__(
        self,
        loss_function: Callable[..., Any],
        optimizer: Any,
        variables: list[Any],
        *,
        budget: Budget,
        micro_batch_size: int | None,
    ) -> None:
        _check(loss_function, optimizer, variables)
        self._guard = Guard(RunNotes(budget))
        self.computation = LossFunction(loss_function, optimizer, variables)
        self._guarded = Guarded(
            self.computation,
            "gradients",
            Ladder(micro_batch_size),
            asked=micro_batch_size is not None,
        )
        start_counting_the_peak()

    @property
    def run(self) -> Run:
        """The record of the run so far."""
        return self._guard.notes.run()

    def __call__(self, *batch: Any) -> Any:
        """One step: what the loss function returns for this batch, as if it had run on all of it at once."""
        if not tf.executing_eagerly():
            raise CannotGuard(
                "a guarded step was called inside a tf.function, where an error cannot be caught",
                suggestion="call step(x, y) from Python; it traces the loss function by itself",
            )
        return self._guard.run(self._guarded, DeviceBatch.of_leaves(batch))


def _check(loss_function: Any, optimizer: Any, variables: list[Any]) -> None:
    if not callable(loss_function):
        raise CannotGuard(
            f"expected a function of a batch, received {type(loss_function).__name__}",
            suggestion="memfit.step(lambda x, y: loss(y, model(x)), optimizer, model.trainable_variables)",
        )
    if not hasattr(optimizer, "apply"):
        raise CannotGuard(
            f"expected a Keras optimizer, received {type(optimizer).__name__}",
            suggestion="keras.optimizers.Adam()",
        )
    if not variables:
        raise CannotGuard(
            "there are no variables to train",
            suggestion="build the model first: model(x[:1]), then model.trainable_variables",
        )
