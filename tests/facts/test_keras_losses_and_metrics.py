"""Facts behind `memfit.private.keras.losses_and_metrics`: what breaks if a private name goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.private.keras.losses_and_metrics import (
        class_weights,
        compiled_loss,
        function_of,
        loss_in_training,
        loss_tracker,
        metric_function,
        other_metrics,
        output_losses,
        output_trackers,
        quiet,
        wrapped_added_losses,
        wrapped_output_losses,
    )

    seen: dict[str, Any] = {}
    model = keras.Sequential([
        keras.Input((2,)),
        keras.layers.Dense(3, kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    ])  # fmt: skip
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 2), "float32"), np.ones((2, 3), "float32"))
    zeros, ones = tf.zeros((2, 3)), tf.ones((2, 3))

    seen["tracker"] = loss_tracker(model).name
    seen["losses"] = [loss.reduction for loss in output_losses(model)]
    seen["trackers"] = len(output_trackers(model))
    seen["compiled"] = float(compiled_loss(model)(zeros, ones))
    with (
        wrapped_output_losses(model, lambda place, loss: lambda *data: 10.0 * loss(*data)),
        wrapped_added_losses(model, lambda loss: 0.0 * loss),
    ):
        seen["wrapped"] = float(model.compute_loss(y=zeros, y_pred=ones))
    seen["metrics"] = [metric.name for metric in other_metrics(model)]
    (mae,) = other_metrics(model)
    seen["metric function"] = metric_function(mae)(zeros, ones).numpy().tolist()
    seen["function of"] = [function_of(one) is not None for one in (mae, keras.metrics.Mean())]
    seen["class weights"] = class_weights(np.array([0, 1, 1]), {0: 2.0, 1: 3.0}).tolist()

    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    plain.compile("sgd", "mse")
    loss = loss_in_training(plain, None, tf.zeros((1, 3)), tf.ones((1, 3)) * 2, None)
    seen["loss in training"] = float(loss)

    drops = keras.layers.Dropout(0.5)
    noise = keras.layers.GaussianNoise(1.0)
    rows, mean = tf.ones((4, 3)), model.layers[1].moving_mean
    before = float(mean[0])
    with quiet(None):
        seen["quiet dropout"] = bool(tf.reduce_all(drops(rows, training=True) == 1.0))
        drawn = noise(rows, training=True)
        seen["quiet noise"] = [bool(tf.reduce_all(drawn == drawn[:1])), bool(tf.reduce_any(drawn != 1.0))]
        model.layers[1](tf.random.normal((4, 3)), training=True)
    seen["quiet statistics"] = float(mean[0]) == before
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("keras-losses-and-metrics", lambda: run_limited(_use_them, "512MiB"))


def test_the_metric_of_the_loss_is_known(seen: Any) -> None:
    """`_loss_tracker`: without it the reported loss is that of the last micro-batch."""
    assert seen["tracker"] == "loss"
    assert seen["trackers"] == 0


def test_losses_of_outputs_are_known(seen: Any) -> None:
    """`_flat_losses`: without it the loss weights of micro-batches are unknown."""
    assert seen["losses"] == ["sum_over_batch_size"]


def test_the_compiled_loss_is_apart(seen: Any) -> None:
    """`_compile_loss`: without it data and regularisation cannot be told apart."""
    assert seen["compiled"] == 1.0


def test_losses_can_be_weighed(seen: Any) -> None:
    """`_flat_losses`, `_aggregate_additional_loss`: without them no loss can be weighed."""
    assert seen["wrapped"] == 10.0


def test_the_loss_in_training_is_the_model_s_own(seen: Any) -> None:
    """`_compute_loss`: without it a trial batch is computed with another loss than training."""
    assert seen["loss in training"] == 4.0


def test_metrics_of_the_user_are_known(seen: Any) -> None:
    """`_compile_metrics`: without it the user's metrics cannot be told from those of the losses."""
    assert len(seen["metrics"]) == 1


def test_metrics_are_called_as_functions(seen: Any) -> None:
    """`_fn`, `_fn_kwargs`: without them metrics that count batches would count parts."""
    assert seen["metric function"] == [1.0, 1.0]
    assert seen["function of"] == [True, False]


def test_class_weights_become_sample_weights(seen: Any) -> None:
    """`class_weight_to_sample_weights`: without it arrays with class weights go to the device whole."""
    assert seen["class weights"] == [2.0, 3.0, 3.0]


def test_a_trial_has_no_noise(seen: Any) -> None:
    """`backend.random`, `BatchNormalization.call`: without them a trial compares other draws each time."""
    assert seen["quiet dropout"], "a trial would compare other masks"
    assert seen["quiet noise"] == [True, True], "a trial would compare other draws"
    assert seen["quiet statistics"], "a trial would compare other statistics"
