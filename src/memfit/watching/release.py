"""Letting go of a model: of what TensorFlow and Keras hold of it, and would hold for ever."""

from __future__ import annotations

import gc
from typing import Any

import keras

from memfit.core.errors import NotAModel
from memfit.machine.readings import return_free_memory
from memfit.private.keras.trainer import optimizer_variables, uncompile
from memfit.private.tensorflow.function_graphs import (
    draws_numbers,
    is_graph,
    let_closures_go_with_their_graph,
    let_gradients_go_with_their_graphs,
)
from memfit.private.tensorflow.runtime import forget_kernels
from memfit.private.tensorflow.variables import backing_variable, variables_in

_TRACED = ("train_function", "test_function", "predict_function")


def release_model(model: Any) -> None:
    """Let go of all that is held of a model but the model itself; others are not touched."""
    if not isinstance(model, keras.Model):
        raise NotAModel(model)
    variables = _variables(model)

    def is_meant(graph: Any) -> bool:
        used = variables_in(graph)
        return used is None or any(id(variable) in variables for variable in used)

    let_gradients_go_with_their_graphs(is_meant)
    for graph in _graphs():
        if is_meant(graph):
            let_closures_go_with_their_graph(graph)
    _forget_training(model)
    gc.collect()
    if not any(map(draws_numbers, _graphs())):
        forget_kernels()
    return_free_memory()


def _variables(model: Any) -> dict[int, Any]:
    """The tf.Variables of a model, its metrics and its optimizer, by identity."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    known = [*model.variables, *metrics, *optimizer_variables(model)]
    behind = map(backing_variable, known)
    return {id(variable): variable for variable in behind}


def _graphs() -> list[Any]:
    return [thing for thing in gc.get_objects() if is_graph(thing)]


def _forget_training(model: Any) -> None:
    """Drop traces and the optimizer, whose slots are larger than the weights; the weights stay."""
    for name in _TRACED:
        setattr(model, name, None)
    uncompile(model)
