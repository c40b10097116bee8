"""Phase two: weights, optimizer state and stage change together, or not at all."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.devices import is_oom
from memfit.runs.accumulators import Accumulators, Slices
from memfit.runs.aligned import aligned_copy, as_tensor
from memfit.runs.graphs import graph
from memfit.runs.keras_internals import backing_variable
from memfit.runs.stages import Stage, distinct


class Commit:
    """Applies the gathered gradients and the stage to the model, with a way back for every variable.

    The way back is a reference to every old value, which costs memory only while the commit writes: a
    value that is referred to is copied before it changes. Where that memory is not there, the old values
    are copied to the host instead.
    """

    def __init__(
        self, optimizer: Any, accumulators: Accumulators, stage: Stage, *, eager: bool = False
    ) -> None:
        self._optimizer = optimizer
        self._accumulators = accumulators
        self._stage = stage
        self._apply: Any = self._write if eager else None
        self._before: list[Any] = []
        self._on_host = False

    def _changing(self) -> list[Any]:
        """Every tf.Variable that a commit may change."""
        variables = [*self._accumulators.trainable, *self._optimizer.variables, *self._stage.variables]
        return [backing_variable(variable) for variable in distinct(variables)]

    def references(self) -> list[Any]:
        """The values of all variables that may change, eagerly or while tracing."""
        return [variable.read_value() for variable in self._changing()]

    def remember(self, before: list[Any]) -> None:
        """Take the values that lead back; nobody else may keep them, or changing costs their memory."""
        self._before = before

    def run(self) -> Exception | None:
        """Change the model; on any failure leave it as it was and raise.

        Returns the out-of-memory error that the commit survived, if there was one.
        """
        slices = self._accumulators.joined_slices()
        survived = None
        try:
            self._change_or_go_back(slices)
        except Exception as error:
            if self._on_host or not is_oom(error):
                raise
            survived = error.with_traceback(None)  # whose frames would keep the old values alive
            self._on_host = True
        if survived is not None:
            self._change_or_go_back(slices)
        self._before = []
        return survived

    def _change_or_go_back(self, slices: Slices) -> None:
        if self._on_host:
            self._before = [as_tensor(aligned_copy(value.numpy())) for value in self._before]
        self._apply = self._apply or graph(self._write, input_signature=[_open_specs(slices)])
        try:
            self._apply(slices)
        except BaseException:
            for variable, value in zip(self._changing(), self._before, strict=True):
                variable.assign(value)
            raise

    def _write(self, slices: Slices) -> None:
        self._optimizer.apply(self._accumulators.gradients(slices), self._accumulators.trainable)
        self._stage.publish()


def _open_specs(slices: Slices) -> Any:
    """Specs of slices with an open number of rows, so that one trace serves every step."""
    return {
        place: tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in pair)
        for place, pair in slices.items()
    }
