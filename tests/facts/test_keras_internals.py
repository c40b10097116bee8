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
    with (
        internals.wrapped_output_losses(model, lambda place, loss: lambda *data: 10.0 * loss(*data)),
        internals.wrapped_added_losses(model, lambda loss: 0.0 * loss),
    ):
        seen["wrapped"] = float(model.compute_loss(y=tf.zeros((2, 3)), y_pred=tf.ones((2, 3))))
    seen["metrics"] = [metric.name for metric in internals.other_metrics(model)]
    (mae,) = internals.other_metrics(model)
    seen["metric function"] = (
        internals.metric_function(mae)(tf.zeros((2, 3)), tf.ones((2, 3))).numpy().tolist()
    )
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    seen["is built"] = [internals.is_built(one, trains=True, evaluates=True) for one in (model, unbuilt)]
    parts = internals.compiled_parts(model)
    seen["parts"] = [parts[0] is model.optimizer, *(part is not None for part in parts[1:3]), parts[3]]
    seen["class weights"] = internals.class_weights(np.array([0, 1, 1]), {0: 2.0, 1: 3.0}).tolist()
    seen["layers"] = [type(layer).__name__ for layer in internals.all_layers(model)]
    seen["strategy"] = internals.strategy_of(model) is None

    masked = keras.layers.Embedding(4, 2, mask_zero=True)(tf.constant([[0, 1]]))
    seen["mask"] = internals.mask_of(masked).numpy().tolist()
    seen["no mask"] = internals.mask_of(tf.ones(1)) is None

    calls: list[Any] = []
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    scaled.build([kernel])
    before = kernel.numpy().tolist()
    apply = keras.optimizers.Optimizer.apply
    with internals.captured_updates(lambda *update: calls.append(update)):
        model.optimizer.apply_gradients([(tf.ones_like(kernel), kernel)])
        scaled.apply([tf.ones_like(kernel)])
    seen["captured"] = [[len(gradients), variables[0] is kernel] for _, gradients, variables in calls]
    seen["back"] = keras.optimizers.Optimizer.apply is apply and kernel.numpy().tolist() == before
    assigned: list[Any] = []
    with internals.overridden(scaled.inner_optimizer, "assign_sub", lambda *update: assigned.append(update)):
        scaled.inner_optimizer.apply([tf.ones_like(kernel)], [kernel])
    seen["assigned"] = len(assigned)
    seen["inner"] = [one is scaled for one in internals.with_inner(scaled)]

    drops = keras.layers.Dropout(0.5)
    noise = keras.layers.GaussianNoise(1.0)
    rows = tf.ones((4, 3))
    with internals.quiet(None):
        seen["quiet dropout"] = bool(tf.reduce_all(drops(rows, training=True) == 1.0))
        drawn = noise(rows, training=True)
        seen["quiet noise"] = [bool(tf.reduce_all(drawn == drawn[:1])), bool(tf.reduce_any(drawn != 1.0))]
        model.layers[1](tf.random.normal((4, 3)), training=True)
    seen["quiet statistics"] = float(mean[0]) == seen["outside"]

    with internals.StagedScope([]), internals.outside_scopes():
        seen["outside scopes"] = isinstance(internals.backing_variable(keras.Variable(1.0)), tf.Variable)

    joined: list[int] = []
    with internals.predictions_on_host(lambda tensors: joined.append(len(tensors))):
        model.predict(batch[0], batch_size=2, verbose=0)
    seen["joined"] = joined

    holder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    holder.compile("adam", "mse")
    count = len(holder.optimizer.variables)
    try:
        with internals.optimizers_kept_whole(holder):
            holder.optimizer.build(holder.trainable_variables)
            raise MemoryError
    except MemoryError:
        seen["kept whole"] = [holder.optimizer.built, len(holder.optimizer.variables) == count]
    holder.fit(batch[0], batch[1][:, :1], verbose=0)
    seen["builds afterwards"] = len(holder.optimizer.variables) - count
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
    assert seen["wrapped"] == 10.0, (
        "without _flat_losses and _aggregate_additional_loss nothing can be weighed"
    )
    assert len(seen["metrics"]) == 1
    assert seen["metric function"] == [1.0, 1.0], "without _fn metrics that count batches would count parts"
    assert seen["is built"] == [True, False]
    assert seen["parts"] == [True, True, True, True], "without these a second compile goes unnoticed"
    assert seen["class weights"] == [2.0, 3.0, 3.0]
    assert "BatchNormalization" in seen["layers"], "without _flatten_layers BatchNorm goes unnoticed"
    assert seen["strategy"], "without _distribute_strategy a strategy goes unnoticed"
    assert seen["mask"] == [[False, True]], "without _keras_mask masked losses would be weighted wrongly"
    assert seen["no mask"]
    assert seen["captured"] == [[1, True], [1, True]], "an update that is not captured changes the weights"
    assert seen["back"], "the optimizers were not put back as they were"
    assert seen["assigned"] == 1, (
        "optimizers no longer assign through a method of their own: each old value is copied"
    )
    assert seen["inner"] == [True, False]
    assert seen["quiet dropout"], "a probe would compare other masks"
    assert seen["quiet noise"] == [True, True], "a probe would compare other draws"
    assert seen["quiet statistics"], "a probe would compare other statistics"
    assert seen["outside scopes"], "slots made while tracing would be lost"
    assert seen["joined"] == [2], "predictions would be joined on the device"
    assert seen["kept whole"] == [False, True], "slots that did not fit would be there twice"
    assert seen["builds afterwards"] == 4


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
