"""Counters of a model's own, as for annealing: they move once for a batch, however it is split."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.test_fit import _arrays, _compare
from guarding.test_own_train_steps import _sequential
from limited import run_limited

pytestmark = pytest.mark.real


def _try_all(dtype: str) -> dict[str, Any]:
    import keras
    from keras import layers, ops

    import memfit
    from guarding.small_models import prepare

    prepare(floatx="float64", deterministic=True)
    x, _, _ = _arrays(48)

    class Annealed(layers.Layer):  # type: ignore[misc]
        """Adds a loss that counts more with each step, and notes samples seen and their running mean."""

        def build(self, shape: Any) -> None:
            options = {"shape": (), "initializer": "zeros", "trainable": False}
            self.counter = self.add_weight(dtype=dtype, name="counter", **options)
            self.twice = self.add_weight(name="twice", **options)
            self.samples = self.add_weight(name="samples", **options)

        def call(self, x: Any) -> Any:
            self.counter.assign_add(1)
            self.twice.assign(2 * ops.cast(self.counter, "float64"))
            self.samples.assign_add(ops.cast(ops.shape(x)[0], "float64"))
            weight = 0.1 * ops.cast(self.counter, x.dtype)
            self.add_loss(weight * ops.mean(x**2))
            return x

    def make() -> Any:
        return _sequential(
            keras.Input((6,)), layers.Dense(4), Annealed(), layers.Dropout(0.0), layers.Dense(1), loss="mse"
        )

    given = {"x": x, "y": x[:, :1], "batch_size": 16, "epochs": 2}
    found = _compare(make, given, micro_batch_size=5)
    model = make()
    run = memfit.fit(model, **given, micro_batch_size=5, verbose=0).run
    layer = model.layers[1]
    after = [float(one) for one in (layer.counter, layer.twice, layer.samples)]
    with memfit.protect(model, micro_batch_size=5):
        model.evaluate(x, x[:, :1], batch_size=16, verbose=0)
    return {**found, "size": run.micro_batch_size, "after": after, "evaluated": float(layer.counter)}


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_a_counter_moves_once_for_a_batch(dtype: str) -> None:
    found = run_limited(_try_all, "2GiB", dtype=dtype)
    assert found["size"] == 5
    assert found["after"] == [6, 12, 96], "6 steps; what follows from the samples adds up over them"
    assert found["difference"] < 1e-12
    assert found["logs"] < 1e-9
    assert found["evaluated"] == 9
