"""Models that look ordinary and are not: each of these went wrong once."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.test_fit import _arrays, _compare, _dense
from guarding.test_own_train_steps import _sequential
from limited import run_limited

pytestmark = pytest.mark.real


def _try_all() -> dict[str, Any]:
    import gc
    import weakref

    import keras
    import numpy as np
    from keras import layers, ops

    import memfit
    from guarding.small_models import prepare

    prepare(floatx="float64", deterministic=True)
    x, y, _ = _arrays(48)
    base: dict[str, Any] = {"x": x, "y": y, "batch_size": 16, "epochs": 2}
    seen: dict[str, Any] = {}

    def regression(**options: Any) -> Any:
        return _sequential(keras.Input((6,)), layers.Dense(1), loss="mse", **options)

    numbers = {**base, "y": x[:, :1]}
    seen["RMSE"] = _compare(
        lambda: regression(metrics=[keras.metrics.RootMeanSquaredError()]), numbers, micro_batch_size=5
    )["logs"]
    total = _compare(
        lambda: regression(metrics=[lambda a, b: ops.sum(abs(a - b))]), numbers, micro_batch_size=5
    )
    root = _compare(
        lambda: regression(metrics=[lambda a, b: ops.sqrt(ops.mean((a - b) ** 2))]),
        numbers,
        micro_batch_size=5,
    )
    seen["sum as a metric"], seen["root as a metric"] = total["logs"], root["run"]["notes"]

    class Block(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, 3)

        def build(self, shape: Any) -> None:
            self.attention.build(shape, shape)

        def call(self, x: Any) -> Any:
            return x + self.attention(x, x) + keras.random.uniform((), dtype=x.dtype) * 0.0

    def block() -> Any:
        return _sequential(
            keras.Input((6,)), layers.Reshape((3, 2)), Block(), layers.Flatten(), layers.Dense(3, "softmax")
        )

    seen["attention"] = memfit.fit(block(), **base, micro_batch_size=5, verbose=0).run.micro_batch_size

    untrained = _dense()
    with memfit.protect(untrained):
        seen["untrained"] = list(untrained.predict(x, verbose=0).shape)
    seen["slots"] = untrained.optimizer.built

    words = keras.Sequential(
        [keras.Input((1,), dtype="int32"), layers.StringLookup(vocabulary=["a"], invert=True)]
    )
    with memfit.protect(words):
        seen["words"] = words.predict(np.array([[0], [1]] * 20), verbose=0, batch_size=8).shape

    class ReadsValues(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            if float(ops.max(data[0])) > 100:
                raise ValueError
            return super().train_step(data)

    reads = ReadsValues([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    reads.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    seen["reads values"] = memfit.fit(reads, **base, verbose=0).run.steps

    model = _dense()
    memfit.fit(model, **base, validation_data=(x, y), verbose=0)
    old = weakref.ref(model.optimizer)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    memfit.fit(model, **base, verbose=0)
    gc.collect()
    seen["old optimizer"] = old() is None

    own = block()
    grown = [(x[:1], y[:1]), (x[:16], y[:16])]
    history = memfit.fit(own, (batch for batch in grown), steps_per_epoch=2, verbose=0, micro_batch_size=5)
    seen["one, then many"] = history.run.micro_batch_size
    shapes = [(x[:8], x[:8, :1]), (x[:8], x[:8, 0])]
    seen["ranks"] = [
        memfit.fit(
            regression(), (b for b in [batch]), steps_per_epoch=1, verbose=0, micro_batch_size=4
        ).run.steps
        for batch in shapes
    ]
    whole = _dense(loss=keras.losses.Circle(), metrics=[], weighted_metrics=[])
    seen["notes"] = [len(memfit.fit(whole, **base, verbose=0).run.notes) for _ in range(2)]
    return seen


def test_each_goes_right() -> None:
    seen = run_limited(_try_all, "2GiB")
    assert seen["RMSE"] < 1e-9
    assert seen["sum as a metric"] < 1e-9
    assert any("is averaged over micro-batches" in note for note in seen["root as a metric"])
    assert seen["attention"] == 5, "the gradient of the key's bias is zero but for rounding"
    assert seen["untrained"] == [48, 3]
    assert seen["slots"] is False, "prediction needs no optimizer"
    assert seen["words"] == [40, 1]
    assert seen["reads values"] == 6
    assert seen["old optimizer"], "what `compile` replaced is kept alive"
    assert seen["one, then many"] == 5
    assert seen["ranks"] == [1, 1]
    assert seen["notes"] == [1, 1]
