"""Small real models for the tests of guarded training, and what a training leaves behind."""

from __future__ import annotations

import hashlib
from typing import Any


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
    return [hashlib.sha256(value.tobytes()).hexdigest()[:16] for value in variables(model, metrics=metrics)]


def difference(first: list[Any], second: list[Any]) -> float:
    """The largest absolute difference over all variables."""
    assert len(first) == len(second)
    return max(
        float(abs(a.astype("float64") - b).max()) for a, b in zip(first, second, strict=True) if a.size
    )
