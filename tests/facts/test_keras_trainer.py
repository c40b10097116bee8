"""Facts behind `memfit.private.keras.trainer`: what breaks if a private name of Keras goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from memfit.private.keras.trainer import CALLS_THAT_BUILD
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import numpy as np

    from memfit.private.keras.trainer import (
        epoch_iterators,
        first_iterator_from,
        metrics_where_no_step_ran,
        predictions_on_host,
        strategy_of,
    )

    seen: dict[str, Any] = {}
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    seen["strategy"] = strategy_of(model) is None
    made: list[Any] = []

    def make(kind: Any, **options: Any) -> Any:
        made.append(sorted(options))
        return kind(**options)

    with first_iterator_from(make):
        model.fit(x, y, batch_size=2, validation_data=(x, y), verbose=0)
    seen["made"] = made
    kind = epoch_iterators()
    iterator = kind(x=x, y=y, batch_size=2, distribute_strategy=model.distribute_strategy)
    iterator.reset()
    seen["steps"] = [(begin, end) for begin, end, _ in iterator]
    hooks = ("_enumerate_iterator", "_get_iterator", "catch_stop_iteration")
    seen["hooks"] = [hasattr(kind, name) for name in hooks]

    with metrics_where_no_step_ran(model):
        seen["metrics"] = list(model._get_metrics_result_or_logs({}))
        seen["logs"] = model._get_metrics_result_or_logs({"mine": 1})

    joined: list[int] = []
    with predictions_on_host(lambda tensors: joined.append(len(tensors))):
        model.predict(x, batch_size=2, verbose=0)
    seen["joined"] = joined
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("keras-trainer", lambda: run_limited(_use_them, None))


def test_a_strategy_is_noticed(seen: Any) -> None:
    """`_distribute_strategy`: without it a distribution strategy goes unnoticed."""
    assert seen["strategy"]


def test_predictions_are_joined_on_the_host(seen: Any) -> None:
    """`potentially_ragged_concat`: without it predictions are joined on the device."""
    assert seen["joined"] == [2]


def test_the_iterator_of_fit_is_replaced_alone(seen: Any) -> None:
    """`TFEpochIterator`: without it data cannot be taken again; evaluations keep their own iterator."""
    (options,) = seen["made"]
    assert {"x", "y", "batch_size", "steps_per_epoch", "shuffle", "class_weight"} <= set(options)


def test_an_epoch_iterator_has_its_hooks(seen: Any) -> None:
    """`_enumerate_iterator`, `_get_iterator`, `catch_stop_iteration`: without them no step is skipped."""
    assert seen["steps"] == [[0, 0], [1, 1]]
    assert seen["hooks"] == [True, True, True]


def test_an_epoch_without_steps_has_metrics(seen: Any) -> None:
    """`_get_metrics_result_or_logs`: an epoch that was killed after its last batch loses its losses."""
    assert seen["metrics"] == ["loss"]
    assert seen["logs"] == {"mine": 1}


def _steps_without_data() -> dict[str, list[int]]:
    """Three batches for two epochs, and what the counter says, and the seed, by how the step runs.

    Plainly, and guarded, which has `StepWithoutData` do the same.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit
    from memfit.private.keras.trainer import StepWithoutData

    StepWithoutData(keras.Model()).happen()  # of nothing: no step has been watched
    rows = tf.data.Dataset.from_tensor_slices((np.ones((12, 2), "float32"), np.ones((12, 1), "float32")))
    data = rows.filter(lambda x, y: True).batch(4)  # of which no length is known
    found = {}
    for how, options in {
        "compiled": {},
        "eager": {"run_eagerly": True},
        "xla": {"jit_compile": True},
        "two at a time": {"steps_per_execution": 2},
        "accumulating": {"optimizer": {"class_name": "Adam", "config": {"gradient_accumulation_steps": 2}}},
    }.items():
        for fit in (keras.Model.fit, memfit.fit):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
            model.compile(**{"optimizer": "adam", "loss": "mse", **options})  # type: ignore[dict-item]
            fit(model, data, epochs=2, verbose=0)
            steps, draws = model.optimizer.iterations, model.layers[0].seed_generator.state
            found.setdefault(how, []).append([int(steps), int(draws.numpy()[1])])
    return found


def test_the_end_of_data_of_unknown_length_is_a_step_for_optimizers() -> None:
    """Keras begins a step before it knows that there is no batch: guarded training does as plain Keras."""
    found = run_limited(_steps_without_data, None)
    assert found["compiled"][0] == [8, 8], "Keras counts no such step any more: StepWithoutData can go"
    assert found["eager"][0] == found["xla"][0] == found["two at a time"][0] == [6, 6]
    for how, (plain, guarded) in found.items():
        assert guarded == plain, how


def _use_compiled_parts() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    _parts(seen)
    _optimizers(seen)
    return seen


def _parts(seen: dict[str, Any]) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.private.keras.trainer import (
        build_everything,
        captured_updates,
        compiled_parts,
        is_built,
        optimizer_targets,
        optimizer_variables,
        optimizers_of,
        uncompile,
        with_inner,
    )

    model = keras.Sequential([
        keras.layers.Dense(3, kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    ])  # fmt: skip
    model.compile("adam", "mse", metrics=["mae"])
    build_everything(model, (np.ones((4, 2), "float32"), np.ones((4, 3), "float32"), None))
    seen["built"] = [model.built, model.optimizer.built, len(model.metrics_variables)]
    seen["open batch"] = model.input_shape[0]
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    seen["is built"] = [is_built(one, trains=True, evaluates=True) for one in (model, unbuilt)]
    parts = compiled_parts(model)
    seen["parts"] = [parts[0] is model.optimizer, *(part is not None for part in parts[1:3]), parts[3]]
    seen["variables"] = [len(optimizer_variables(one)) > 0 for one in (model, unbuilt)]

    kernel = model.layers[0].kernel
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    scaled.build([kernel])
    seen["targets"] = [target is kernel for target in optimizer_targets(scaled)]
    seen["inner"] = [one is scaled for one in with_inner(scaled)]
    unbuilt.mine = scaled
    seen["held"] = [any(one is two for two in optimizers_of(unbuilt)) for one in with_inner(scaled)]
    before, apply = kernel.numpy().tolist(), keras.optimizers.Optimizer.apply
    calls: list[Any] = []
    with captured_updates(lambda *update: calls.append(update)):
        model.optimizer.apply_gradients([(tf.ones_like(kernel), kernel)])
        scaled.apply([tf.ones_like(kernel)])
    seen["captured"] = [[len(gradients), variables[0] is kernel] for _, gradients, variables in calls]
    seen["put back"] = keras.optimizers.Optimizer.apply is apply and kernel.numpy().tolist() == before

    uncompile(model)
    seen["compiled"] = [model.compiled, model.optimizer is None]


def _optimizers(seen: dict[str, Any]) -> None:
    import keras

    from memfit.private.keras.trainer import compiled_with, put_optimizer

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    first = model.optimizer
    second = keras.optimizers.LossScaleOptimizer(first)
    seen["compiled with"] = compiled_with(model) is first
    put_optimizer(model, second)
    seen["put"] = model.optimizer is second and compiled_with(model) is second
    seen["saved"] = model.get_compile_config()["optimizer"]["class_name"]
    model.dtype_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model.compile(first, "mse")
    seen["scaled by keras"] = model.optimizer.inner_optimizer is compiled_with(model)


@pytest.fixture(scope="module")
def compiled() -> Any:
    return computed_once("keras-compiled-model", lambda: run_limited(_use_compiled_parts, "512MiB"))


def test_everything_is_built_from_shapes(compiled: Any) -> None:
    """`_symbolic_build`: without it no shadow state can be made before the first step."""
    assert compiled["built"] == [True, True, 4]
    assert compiled["open batch"] is None, "a model built here would take one batch size only"
    assert compiled["is built"] == [True, False]
    assert compiled["variables"] == [True, False]


def test_parts_of_compile_are_known(compiled: Any) -> None:
    """`_compile_loss`, `_compile_metrics`: without them a second compile goes unnoticed."""
    assert compiled["parts"] == [True, True, True, True]


def test_every_update_is_captured(compiled: Any) -> None:
    """`Optimizer.apply`, `_trainable_variables`: an update that is not captured changes the weights."""
    assert compiled["targets"] == [True]
    assert compiled["captured"] == [[1, True], [1, True]]
    assert compiled["put back"], "the optimizers were not put back as they were"


def test_inner_optimizers_are_found(compiled: Any) -> None:
    """`inner_optimizer`: without it the inner optimizer's slots may stay half built."""
    assert compiled["inner"] == [True, False]
    assert compiled["held"] == [True, True]


def test_an_optimizer_takes_the_place_of_another(compiled: Any) -> None:
    """`_compile_config`: without it a saved model has another optimizer, and it is unknown whose it was."""
    assert compiled["compiled with"]
    assert compiled["put"]
    assert compiled["saved"] == "LossScaleOptimizer"
    assert compiled["scaled by keras"]


def test_a_model_can_be_taken_back_to_before_compile(compiled: Any) -> None:
    """`_compile_config`, `DotNotTrackScope`: without them the optimizer's slots stay with the model."""
    assert compiled["compiled"] == [False, True]


def _draws_of_a_first_step() -> list[int]:
    import random

    import keras
    import numpy as np

    class Drawing(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            drawn.append(random.random())
            return self.dense(x)

    drawn: list[float] = []
    model = Drawing()
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones((2, 1)), np.zeros((2, 1)), verbose=0)
    first = len(drawn)
    model.fit(np.ones((3, 1)), np.zeros((3, 1)), verbose=0)
    return [first, len(drawn)]


@pytest.mark.real
def test_a_model_is_called_so_often_before_its_first_step() -> None:
    """`Model.fit`: else layers that draw from Python's `random` draw other numbers than in plain Keras."""
    first, second = run_limited(_draws_of_a_first_step, None)
    assert first == CALLS_THAT_BUILD + 1
    assert second >= first
