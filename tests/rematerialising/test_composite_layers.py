"""Blocks inside one layer of a Functional model, and layers that a model's call does not use."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _block() -> Any:
    import keras

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = keras.layers.Dense(256, "gelu"), keras.layers.Dense(32)

        def build(self, shape: Any) -> None:
            self.wide.build(shape)
            self.narrow.build((*shape[:-1], 256))

        def call(self, x: Any) -> Any:
            return x + self.narrow(self.wide(x))

    return Block()


def _encoder(blocks: int) -> Any:
    import keras

    class Encoder(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [_block() for _ in range(blocks)]

        def build(self, shape: Any) -> None:
            for block in self.blocks:
                block.build(shape)

        def call(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    return Encoder()


def _around_one_layer() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 32))
    model = keras.Model(inputs, keras.layers.Dense(1)(_encoder(6)(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _with_a_spare_layer() -> Any:
    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = [_block() for _ in range(6)], keras.layers.Dense(1)
            self.spare = keras.layers.Dense(10)

        def call(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    keras.utils.set_random_seed(0)
    model = Model()
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _train(kind: str) -> dict[str, Any]:
    import numpy as np

    import memfit

    make = {"one layer": _around_one_layer, "spare layer": _with_a_spare_layer}[kind]
    random = np.random.default_rng(0)
    x, y = random.random((64, 16, 32), "float32"), random.random((64, 16, 1), "float32")
    models = [make(), make()]
    for model in models:
        model(x[:1])
    remat = memfit.remat(models[0], data=x[:1], batch_size=64)
    for model in models:
        model.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0)
    plan = memfit.plan(make() if kind == "one layer" else models[1], 64, "9MiB", allow=["remat"])
    pairs = zip(models[0].get_weights(), models[1].get_weights(), strict=True)
    return {
        "saves": remat.peak_bytes / remat.plain_bytes,
        "far": max(float(np.max(np.abs(a - b))) for a, b in pairs),
        "planned": [plan.chosen.remat is not None, plan.chosen.micro_batch_size],
    }


@pytest.mark.parametrize("kind", ["one layer", "spare layer"])
def test_the_blocks_inside_are_computed_again(kind: str) -> None:
    seen = run_limited(_train, None, kind=kind)
    assert seen["saves"] < 0.5
    assert seen["far"] < 1e-6
    assert seen["planned"] == [True, 64]
