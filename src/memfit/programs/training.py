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
from memfit.models.specs import prediction_specs, training_specs
from memfit.programs.internals import variables_without_memory
from memfit.programs.labels import Labels
from memfit.programs.traces import Trace
from memfit.records import Call, VariableRole

_STEPS: dict[Call, str] = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


def step_of(model: Any, data: Any = None, *, call: Call = "fit") -> Trace:
    """The step that a call of Keras runs, on batches like `data`, or as the model and its loss say."""
    check_model(model)
    specs = prediction_specs(model, data) if call == "predict" else training_specs(model, data)
    jit_compile = bool(model.compiled and model.jit_compile)
    present = [*model.variables, *models.optimizer_variables(model)]

    @contextmanager
    def prepared() -> Iterator[Labels]:
        # XLA looks at variables as they are, so that they must have values there.
        with untouched(model), nullcontext() if jit_compile else variables_without_memory():
            compile_if_it_is_not(model)
            if call != "predict":
                models.build_everything(model, specs)
            with models.called_layers() as layers:
                yield labels_of(model, present, layers)

    def step(batch: Any) -> Any:
        return getattr(model, _STEPS[call])(batch)

    assumed = what_is_assumed(model) if call != "predict" else ()
    return Trace(step, specs, prepared=prepared, jit_compile=jit_compile, left_out=assumed)


def check_model(model: Any) -> None:
    """Raise unless it is a Keras model."""
    if not isinstance(model, keras.Model):
        raise CannotEstimate(
            f"expected a keras.Model, received {type(model).__name__}",
            suggestion="memfit.estimate(model, batch_size=32)",
        )


def compile_if_it_is_not(model: Any) -> None:
    """Take a model that is not compiled as one with Adam and the mean squared error."""
    if not model.compiled:
        model.compile("adam", "mse")


def what_is_assumed(model: Any) -> tuple[str, ...]:
    """What an estimate has to say of a model."""
    return () if model.compiled else ("the model is not compiled: taken as Adam and mean squared error",)


def labels_of(model: Any, present: list[Any], layers: models.CalledLayers) -> Labels:
    """What the variables and operations of a built model belong to."""
    return labels_for(layers, model.optimizer, model.variables, present)


def labels_for(layers: models.CalledLayers, optimizer: Any, weights: list[Any], present: list[Any]) -> Labels:
    """What variables are for, and which of them are in memory anyway."""
    labels = Labels(layers=layers, update=getattr(optimizer, "name", None))
    slots = [] if optimizer is None else list(optimizer.variables)
    held: list[tuple[VariableRole, list[Any]]] = [("weight", weights), ("optimizer", slots)]
    for role, variables in held:
        for variable in variables:
            backing = models.backing_variable(variable)
            labels.paths[id(backing)] = variable.path
            labels.roles[id(backing)] = role
    labels.present.extend(map(models.backing_variable, present))
    return labels
