"""Every private name of Keras that memfit uses: what it must do, and what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.runs import keras_internals as internals

    seen: dict[str, Any] = {}
    model = keras.Sequential([
        keras.layers.Dense(3, kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    ])  # fmt: skip
    model.compile("adam", "mse", metrics=["mae"])
    batch = (np.ones((4, 2), "float32"), np.ones((4, 3), "float32"), None)
    internals.build_everything(model, batch)
    seen["built"] = [model.built, model.optimizer.built, len(model.metrics_variables)]
    seen["open batch"] = model.input_shape[0]
    model.train_on_batch(batch[0][:2], batch[1][:2])

    kernel, mean = model.layers[0].kernel, model.layers[1].moving_mean
    seen["backing"] = isinstance(internals.backing_variable(kernel), tf.Variable)
    with internals.StagedScope([(mean, tf.fill((3,), 7.0))]) as scope:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(kernel * 2.0) + sum(model.losses)
        gradient = tape.gradient(loss, kernel)
        mean.assign(mean + 1.0)
        seen["inside"] = float(scope.get_current_value(mean)[0])
    seen["gradient"] = gradient is not None
    seen["outside"] = float(mean[0])
    seen["written"] = [variable is mean for variable in scope.written.values()]

    seen["tracker"] = internals.loss_tracker(model).name
    seen["losses"] = [loss.reduction for loss in internals.output_losses(model)]
    seen["trackers"] = len(internals.output_trackers(model))
    seen["compiled"] = float(internals.compiled_loss(model)(tf.zeros((2, 3)), tf.ones((2, 3))))
    seen["added"] = float(internals.aggregate_added_loss(model, tf.constant([1.0, 2.0])))
    seen["layers"] = [type(layer).__name__ for layer in internals.all_layers(model)]
    seen["strategy"] = internals.strategy_of(model) is None

    masked = keras.layers.Embedding(4, 2, mask_zero=True)(tf.constant([[0, 1]]))
    seen["mask"] = internals.mask_of(masked).numpy().tolist()
    seen["no mask"] = internals.mask_of(tf.ones(1)) is None

    update, calls = model.optimizer.apply, []
    with internals.overridden(model.optimizer, "apply", lambda *arguments: calls.append(arguments)):
        model.optimizer.apply_gradients([(tf.zeros_like(kernel), kernel)])
    seen["overridden"] = len(calls)
    seen["back"] = model.optimizer.apply == update and "apply" not in vars(model.optimizer)
    return seen


def test_what_memfit_uses_of_keras_is_there_and_does_what_it_needs() -> None:
    seen = run_limited(_use_them, "512MiB")
    assert seen["built"] == [True, True, 4], (
        "without _symbolic_build nothing can be staged before the first step"
    )
    assert seen["open batch"] is None, "a model built here would take one batch size only"
    assert seen["backing"], "without _value there is nothing to commit to"
    assert seen["inside"] == 8.0, "without state_mapping BatchNorm and seeds would move in phase one"
    assert seen["outside"] != 8.0, "an assignment left the stage"
    assert seen["written"] == [True], "without add_update the stage misses what moved"
    assert seen["gradient"], "without a handle for variables that are not staged the tape sees no weights"
    assert seen["tracker"] == "loss", (
        "without _loss_tracker the reported loss is that of the last micro-batch"
    )
    assert seen["losses"] == ["sum_over_batch_size"], "without _flat_losses shares cannot be known"
    assert seen["trackers"] == 0
    assert seen["compiled"] == 1.0, "without _compile_loss data and regularisation cannot be told apart"
    assert seen["added"] == 3.0
    assert "BatchNormalization" in seen["layers"], "without _flatten_layers BatchNorm goes unnoticed"
    assert seen["strategy"], "without _distribute_strategy a strategy goes unnoticed"
    assert seen["mask"] == [[False, True]], "without _keras_mask masked losses would be weighted wrongly"
    assert seen["no mask"]
    assert seen["overridden"] == 1, "without apply below apply_gradients the update cannot be captured"
    assert seen["back"], "the optimizer was not put back as it was"


def _optimizer_counts_after_an_oom() -> list[int]:
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((64, 64, 3)), keras.layers.Conv2D(64, 3, padding="same"), keras.layers.Dropout(0.5),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile("adam", "mse", jit_compile=False)
    try:
        model.train_on_batch(np.ones((64, 64, 64, 3), "float32"), np.ones((64, 1), "float32"))
    except tf.errors.ResourceExhaustedError:
        return [int(model.optimizer.iterations)]
    return []


def test_why_a_plain_retry_is_wrong() -> None:
    """Keras moves its step counter in a step that failed; when it no longer does, the README may say less."""
    assert run_limited(_optimizer_counts_after_an_oom, "60MiB") == [1]
