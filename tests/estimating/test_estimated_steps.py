"""Steps of all kinds: what is estimated beforehand, and what the same process then really needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _dense() -> Any:
    import keras
    from keras import layers

    hidden = [layers.Dense(512, "relu") for _ in range(4)]
    return keras.Sequential([keras.Input((256,)), *hidden, layers.Dropout(0.2), layers.Dense(1)])


def _convolution() -> Any:
    import keras
    from keras import layers

    x = inputs = keras.Input((48, 48, 3))
    for width in (16, 32):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def _groups() -> Any:
    import keras
    from keras import layers

    x = inputs = keras.Input((32, 32, 16))
    x = layers.Conv2D(16, 5, padding="same", groups=16)(x)  # Keras lets XLA compile this one
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))


def _attention() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 64, mask_zero=True)(inputs)
    x = layers.LayerNormalization()(layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def _recurrent() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((24, 32))
    return keras.Model(
        inputs, layers.Dense(1)(layers.GRU(96)(layers.LSTM(96, return_sequences=True)(inputs)))
    )


def _own_step() -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    class Own(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x = inputs = keras.Input((256,))
    for _ in range(4):
        x = layers.Dense(512, "gelu")(x)
    return Own(inputs, layers.Dense(1)(x))


def _reflections() -> Any:
    import keras
    from keras import layers

    def padded(inputs: Any) -> Any:
        return keras.ops.pad(inputs, [[0, 0], [8, 8], [8, 8], [0, 0]], mode="reflect")

    x = inputs = keras.Input((32, 32, 32))
    x = layers.Lambda(padded)(layers.Dense(32)(x))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))


KINDS: dict[str, tuple[Callable[[], Any], int, dict[str, Any]]] = {
    "dense": (_dense, 4096, {}),
    "convolution": (_convolution, 64, {}),
    "groups": (_groups, 64, {}),
    "attention": (_attention, 64, {}),
    "recurrent": (_recurrent, 256, {}),
    "own step": (_own_step, 4096, {}),
    "rematerialised": (_dense, 4096, {"remat": True}),
    "float16": (_convolution, 64, {"policy": "mixed_float16"}),
    "XLA": (_dense, 4096, {"jit_compile": True}),
    "evaluate": (_convolution, 64, {"run": "evaluate"}),
    "predict": (_convolution, 64, {"run": "predict"}),
    "micro-batches": (_attention, 64, {"run": "micro-batches"}),
    "loop": (_dense, 4096, {"run": "loop"}),
    "loop in micro-batches": (_dense, 4096, {"run": "loop", "micro_batch_size": 1024}),
}


# The user's code that most of it comes from.
IN_LOOP = "return tf.reduce_mean((model(x, training=True) - y) ** 2)"
LINES = {
    "own step": "loss = tf.reduce_mean((self(x, training=True) - y) ** 2)",
    "loop": IN_LOOP,
    "loop in micro-batches": IN_LOOP,
}


def _said_and_measured(kind: str) -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit
    from memfit.machine import measure_peak

    make, count, options = KINDS[kind]
    keras.config.set_dtype_policy(options.get("policy", "float32"))
    model = make()
    model.compile("adam", "mse", metrics=["mae"], jit_compile=options.get("jit_compile", False))
    if options.get("remat"):
        memfit.remat(model, batch_size=count)
    x = np.ones((count, *model.inputs[0].shape[1:]), model.inputs[0].dtype)
    y = np.ones((count, 1), "float32")
    before = _face(model)
    estimate, run = _estimated(model, x, y, **options)
    after = _face(model)
    peaks = []
    for _ in range(5):
        with measure_peak() as measured:
            run()
        peaks.append(measured.peak_bytes)
    return {
        "low": estimate.low_bytes,
        "peak": estimate.peak_bytes,
        "safe": estimate.safe_bytes,
        "parts": sum(vars(estimate.parts).values()),
        "left_out": list(estimate.left_out),
        "measured": sorted(peaks[1:]),
        "changed": [name for name, value in before.items() if after[name] != value],
        "method": estimate.method,
        "line": _code(estimate.layers[0].line) if estimate.layers else "",
    }


def _estimated(
    model: Any, x: Any, y: Any, *, run: str = "fit", micro_batch_size: int | None = None, **_: Any
) -> tuple[Any, Callable[[], Any]]:
    """What is said of a step, and what runs it."""
    import memfit

    count = len(x)
    if run == "evaluate":
        return memfit.estimate(model, count, call="evaluate"), lambda: model.test_on_batch(x, y)
    if run == "predict":
        return memfit.estimate(model, count, call="predict"), lambda: model.predict_on_batch(x)
    if run == "micro-batches":
        said = memfit.estimate(model, count, micro_batch_size=count // 4)
        options = {"batch_size": count, "micro_batch_size": count // 4, "verbose": 0}
        return said, lambda: memfit.fit(model, x, y, **options)
    if run == "loop":
        return _estimated_loop(model, x, y, micro_batch_size)
    return memfit.estimate(model, count), lambda: model.train_on_batch(x, y)


def _estimated_loop(model: Any, x: Any, y: Any, micro_batch_size: int | None) -> Any:
    import tensorflow as tf

    import memfit

    def loss(x: Any, y: Any) -> Any:
        return tf.reduce_mean((model(x, training=True) - y) ** 2)

    step = memfit.step(loss, model.optimizer, model.trainable_variables, micro_batch_size=micro_batch_size)
    said = memfit.estimate(step, len(x), data=(x, y), micro_batch_size=micro_batch_size)
    batch = (tf.constant(x), tf.constant(y))
    return said, lambda: step(*batch)


def _code(line: str) -> str:
    """What a line of this file says, given as the estimate names it."""
    name, _, number = line.rpartition(":")
    return Path(__file__).read_text().splitlines()[int(number) - 1].strip() if name else ""


def _face(model: Any) -> dict[str, Any]:
    """What can be seen of a model, its optimizer and its metrics."""
    parts = {"model": model, "optimizer": model.optimizer, "metrics": model._compile_metrics}
    seen: dict[str, Any] = {f"{name}: attributes": set(vars(part)) for name, part in parts.items()}
    seen["optimizer: variables"] = [v.path for v in model.optimizer.variables]
    seen["model: variables"] = [(v.path, v.numpy().tobytes()) for v in model.variables]
    seen["built"] = [part.built for part in parts.values()]
    seen["metrics"] = [metric.name for metric in model.metrics]
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_is_what_is_measured_and_nothing_changes(kind: str) -> None:
    one = run_limited(_said_and_measured, "4GiB", kind=kind)
    assert one["changed"] == []
    assert one["left_out"] == []
    assert one["parts"] == one["peak"]
    assert one["method"] == ("xla" if kind == "XLA" else "graph")
    assert one["line"] == LINES.get(kind, "")
    lowest, *_, highest = one["measured"]
    # A step's peak moves by several per cent, that of a loop by more.
    assert one["low"] * 0.8 <= highest
    assert lowest <= one["safe"] * 1.15


def _probed() -> dict[str, Any]:
    import tensorflow as tf

    import memfit
    from memfit.machine import device_memory, measure_peak

    model = _reflections()
    model.compile("sgd", "mse")
    before = device_memory()
    plain, probed = (memfit.estimate(model, 64, probe=probe) for probe in (False, None))
    taken = device_memory().peak_bytes - before.peak_bytes
    split = memfit.estimate(model, 64, probe=True, micro_batch_size=16)
    x, y = tf.ones((64, 32, 32, 32)), tf.ones((64, 1))  # arrays may be in the pool or not
    for _ in range(2):
        with measure_peak() as measured:
            model.train_on_batch(x, y)
    return {
        "measured": measured.peak_bytes,
        "peaks": [plain.peak_bytes, probed.peak_bytes, split.peak_bytes],
        "scratch": [one.parts.scratch_bytes for one in (plain, probed, split)],
        "probed": [plain.probed, probed.probed, split.probed],
        "left_out": [list(one.left_out) for one in (plain, probed, split)],
        "taken": taken,
    }


def test_kernels_that_nobody_knows_are_probed() -> None:
    """The gradient of padding by reflection works on a copy of what it is given."""
    one = run_limited(_probed, "2GiB", environment={"TF_ENABLE_ONEDNN_OPTS": "0"})
    copy = 64 * 48 * 48 * 32 * 4
    assert one["probed"] == [False, True, True]
    assert one["left_out"] == [["what kernels of MirrorPadGrad need while they run"], [], []]
    assert one["scratch"] == [0, copy, copy // 4]
    plain, probed, split = one["peaks"]
    assert plain < one["measured"] * 0.7
    assert abs(probed / one["measured"] - 1) < 0.05
    assert split < probed
    assert one["taken"] < 1 << 20  # in this process


def _with_and_without_onednn() -> list[dict[str, int]]:
    """What a convolution's gradient needs, as a probe sees it."""
    import tensorflow as tf

    from memfit.graph import kernel_probes
    from memfit.graph.kernel_probes import kernel_of
    from memfit.machine import run_in_child

    with tf.Graph().as_default():
        images = tf.compat.v1.placeholder(tf.float32, (2, 32, 32, 16))
        weights = tf.compat.v1.placeholder(tf.float32, (3, 3, 16, 32))
        gradient = tf.gradients(tf.nn.conv2d(images, weights, 1, "SAME"), weights)[0]
    kernel = kernel_of(gradient.op)
    assert kernel is not None
    job = {"kernels": [kernel.to_dict()], "threads": 2, "seconds": 60.0}
    seen: list[Any] = []
    kernel_probes.measure(**job, emit=seen.append)
    run_in_child(kernel_probes.measure, job, on_event=seen.append, environment={"TF_ENABLE_ONEDNN_OPTS": "1"})
    return seen


def test_a_probe_sees_whose_kernels_run() -> None:
    off = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    plain, with_onednn = run_limited(_with_and_without_onednn, None, environment=off)
    patches = 3 * 3 * 16 * 32 * 32 * 4
    assert plain["scratch_bytes"] > 10 * patches
    assert with_onednn["scratch_bytes"] < plain["scratch_bytes"] / 2
