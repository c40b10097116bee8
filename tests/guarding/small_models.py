"""Small real models for the tests of guarded training, and what a training leaves behind."""

from __future__ import annotations

import hashlib
from typing import Any


def join_the_pool() -> None:
    """Have the pool in one piece, as that of a GPU is, but for the first region of 2 MiB.

    Otherwise it grows in regions that never join, and whether the largest buffer finds room in one of them
    is a matter of luck.
    """
    import tensorflow as tf

    from memfit.machine import limit_in_force

    limit_bytes = limit_in_force()
    assert limit_bytes is not None
    tf.raw_ops.Empty(shape=[limit_bytes - (2 << 20)], dtype=tf.int8)


def prepare(*, floatx: str = "float64", deterministic: bool = False) -> None:
    """The same start for every run of a test."""
    import keras
    import tensorflow as tf

    keras.config.set_floatx(floatx)
    keras.utils.set_random_seed(3)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def variables(model: Any, *, metrics: bool = True) -> list[Any]:
    """Every variable of model and optimizer, and of its metrics if wanted, as arrays."""
    every = [*model.variables, *model.optimizer.variables]
    of_metrics = {id(variable) for variable in model.metrics_variables}
    every = [variable for variable in every if id(variable) not in of_metrics]
    if metrics:
        every += model.metrics_variables
    return [variable.numpy() for variable in every]


def digest(model: Any, *, metrics: bool = True) -> list[str]:
    """One hash for each variable: equal only when every bit is."""
    return [_hash(value) for value in variables(model, metrics=metrics)]


def every_variable(model: Any) -> list[Any]:
    """The variables of model, metrics, all its optimizers, and the global seed."""
    from memfit.private.keras.global_state import global_seed_states
    from memfit.private.keras.trainer import optimizers_of

    return [
        *model.variables,
        *model.metrics_variables,
        *(variable for optimizer in optimizers_of(model) for variable in optimizer.variables),
        *global_seed_states(),
    ]


def every_digest(model: Any) -> list[str]:
    """One hash for each of them."""
    return [_hash(variable.numpy()) for variable in every_variable(model)]


class Remembered:
    """The variables that a model has now, and their values."""

    def __init__(self, model: Any) -> None:
        self._values = [(variable, _hash(variable.numpy())) for variable in every_variable(model)]

    def is_unchanged(self) -> bool:
        return all(_hash(variable.numpy()) == value for variable, value in self._values)


def _hash(value: Any) -> str:
    return hashlib.sha256(value.tobytes()).hexdigest()[:16]


def difference(first: list[Any], second: list[Any]) -> float:
    """The largest absolute difference over all variables."""
    assert len(first) == len(second)
    return max(
        float(abs(a.astype("float64") - b).max()) for a, b in zip(first, second, strict=True) if a.size
    )
