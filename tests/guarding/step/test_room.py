"""With oneDNN on, running out of memory in its kernels is an error and not the end of the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from limited import run_limited
from memfit.core.errors import ChildFailed

pytestmark = pytest.mark.real

ON, OFF = {"TF_ENABLE_ONEDNN_OPTS": "1"}, {"TF_ENABLE_ONEDNN_OPTS": "0"}
ROWS = 16


def make(name: str) -> tuple[Any, Any, Any]:
    """A model whose heavy operations are kernels of oneDNN, and data for four steps."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    if name == "volumes":
        blocks = [
            layer
            for filters in (8, 16)
            for layer in (layers.Conv3D(filters, 3, padding="same", activation="relu"), layers.MaxPooling3D())
        ]
        model = keras.Sequential([keras.Input((16, 32, 32, 1)), *blocks, layers.GlobalAveragePooling3D()])
    else:
        image = keras.Input((48, 48, 3))
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(image)
        if name == "branches":
            for _ in range(2):
                x = layers.concatenate(
                    [layers.Conv2D(16, size, padding="same", activation="relu")(x) for size in (1, 3, 5)]
                )
        else:
            for _ in range(3):
                x = layers.DepthwiseConv2D(3, padding="same")(x)
                x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
        model = keras.Model(image, layers.GlobalAveragePooling2D()(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    random = np.random.default_rng(0)
    x = random.random((4 * ROWS, *model.input_shape[1:]), "float32")
    return model, x, random.random((4 * ROWS, model.output_shape[-1]), "float32")


def _train(name: str) -> dict[str, Any]:
    import logging

    import memfit

    logging.getLogger("memfit").setLevel(logging.ERROR)
    model, x, y = make(name)
    history = memfit.fit(model, x, y, batch_size=ROWS, shuffle=False, verbose=0, plan=False)
    return {
        "weights": [weight.numpy().tolist() for weight in model.trainable_weights],
        "ooms": [oom.error.op or "" for oom in history.run.ooms],
        "micro_batch_size": history.run.micro_batch_size,
        "peak_bytes": history.run.peak_bytes,
    }


@pytest.mark.parametrize("name", ["volumes", "branches", "depthwise"])
def test_a_limit_that_is_too_small_costs_no_process(name: str) -> None:
    roomy = run_limited(_train, "2GiB", environment=ON, name=name)
    assert roomy["ooms"] == []
    largest = max(float(np.abs(np.asarray(weight)).max()) for weight in roomy["weights"])
    for share in (0.45, 0.8):
        limit = f"{max(4, int(share * roomy['peak_bytes']) >> 20)}MiB"
        tight = run_limited(_train, limit, environment=ON, name=name)
        if share < 0.5:  # the larger one may do for the whole batch: branches overlap differently each time
            assert tight["micro_batch_size"] < ROWS, limit
        assert not [op for op in tight["ooms"] if "room" in op], "an op that the user does not know"
        for mine, theirs in zip(tight["weights"], roomy["weights"], strict=True):
            assert np.allclose(mine, theirs, rtol=0, atol=1e-4 * largest), limit


def _train_plainly(rows: int) -> str:
    import tensorflow as tf

    model, x, y = make("depthwise")
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    step(tf.constant(x[:rows]), tf.constant(y[:rows]))
    return "trained"


def test_without_checks_the_process_would_end() -> None:
    """The fact that the checks are there for."""
    assert run_limited(_train_plainly, "24MiB", environment=ON, rows=1) == "trained"
    with pytest.raises(ChildFailed) as raised:
        run_limited(_train_plainly, "24MiB", environment=ON, rows=4 * ROWS)
    assert "Error" not in str(raised.value), "an exception, and no crash"


def _fill_pool() -> list[Any]:
    """Hold all of the pool but a few thousand bytes."""
    import tensorflow as tf

    from memfit.machine.limits import free_bytes

    held = []
    while (free := free_bytes() or 0) > 8192:
        held.append(tf.raw_ops.Empty(shape=[free // 2], dtype=tf.uint8))
    return held


def _small_gradient(checked: bool) -> str:
    from contextlib import nullcontext

    import tensorflow as tf

    from memfit.guarding.step.room import room_checked

    def gradient(x: Any, dy: Any) -> Any:
        options = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=[3, 3, 16, 32], out_backprop=dy, **options
        )

    tf.zeros((61 << 20,), tf.uint8)  # so that the pool is in one piece
    x, dy = tf.ones((4, 24, 24, 16)), tf.ones((4, 24, 24, 32))
    with room_checked() if checked else nullcontext():
        function = tf.function(gradient, autograph=False).get_concrete_function(x, dy)
    function(x, dy)
    held = _fill_pool()
    try:
        function(x, dy)
    except tf.errors.ResourceExhaustedError:
        return f"raised with {len(held)} held"
    return "ran"


def test_a_kernel_with_a_small_output_is_checked_too() -> None:
    assert run_limited(_small_gradient, "64MiB", environment=ON, checked=True).startswith("raised")
    with pytest.raises(ChildFailed) as raised:
        run_limited(_small_gradient, "64MiB", environment=ON, checked=False)
    assert "Error" not in str(raised.value), "an exception, and no crash"


def _checks() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.guarding.step.room import ROOM, room_checked

    model, x, y = make("branches")

    def rooms(**shape: Any) -> list[str]:
        specs = (
            tf.TensorSpec((shape["rows"], *x.shape[1:])),
            tf.TensorSpec((shape["rows"], y.shape[1])),
        )
        with room_checked():
            step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
            operations = step.get_concrete_function(*specs).graph.get_operations()
        return [operation.name for operation in operations if operation.name.endswith(f"/{ROOM}")]

    return {"open": rooms(rows=None), "settled": rooms(rows=ROWS)}


def test_only_where_onednn_is_on_and_for_any_batch_size() -> None:
    on, off = (run_limited(_checks, None, environment=world) for world in (ON, OFF))
    assert off == {"open": [], "settled": []}
    assert len([name for name in on["open"] if "Conv2DBackpropInput" in name]) == 6, "not that of the images"
    assert len([name for name in on["open"] if "gradient_tape" not in name]) == 7
    assert on["settled"] == on["open"]
