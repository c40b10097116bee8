"""The steps of a Keras model as functions to trace, without changing anything of the model.

Variables that the first step would create (of optimizer, metrics and losses) are created without memory, and
taken back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from memfit.errors import CannotEstimate
from memfit.models import internals as models
from memfit.models.snapshots import untouched
from memfit.models.specs import training_specs
from memfit.programs.internals import variables_without_memory
from memfit.programs.labels import Labels
from memfit.programs.traces import Trace
from memfit.records import VariableRole


def train_step_of(model: Any, data: Any = None) -> Trace:
    """The step that `fit` runs, on batches like `data`, or as the model and its loss say."""
    if not isinstance(model, keras.Model):
        raise CannotEstimate(
            f"expected a keras.Model, received {type(model).__name__}",
            suggestion="memfit.estimate(model, batch_size=32)",
        )
    specs = training_specs(model, data)
    jit_compile = bool(model.compiled and model.jit_compile)

    @contextmanager
    def prepared() -> Iterator[Labels]:
        # XLA looks at variables as they are, so that they must have values there.
        with untouched(model), nullcontext() if jit_compile else variables_without_memory():
            if not model.compiled:
                model.compile("adam", "mse")
            models.build_everything(model, specs)
            yield _labels(model)

    def step(batch: Any) -> Any:
        return model.train_step(batch)

    assumed = () if model.compiled else ("the model is not compiled: taken as Adam and mean squared error",)
    return Trace(step, specs, prepared=prepared, jit_compile=jit_compile, left_out=assumed)


def _labels(model: Any) -> Labels:
    layers = models.all_layers(model)[1:]
    labels = Labels(
        layers=frozenset(layer.name for layer in layers), update=getattr(model.optimizer, "name", None)
    )
    held: list[tuple[VariableRole, list[Any]]] = [
        ("weight", model.variables),
        ("optimizer", models.optimizer_variables(model)),
    ]
    for role, variables in held:
        for variable in variables:
            backing = id(models.backing_variable(variable))
            labels.paths[backing] = variable.path
            labels.roles[backing] = role
    return labels
