"""Inputs as people give them: dictionaries for a list of inputs, and optional inputs that are None."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _by_name() -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit

    def model() -> Any:
        keras.utils.set_random_seed(0)
        title, body = keras.Input((300,), name="title"), keras.Input((10,), name="body")
        x = keras.layers.Concatenate()([title, body])
        for width in (256, 256, 256, 256):
            x = keras.layers.Dense(width, "gelu")(x)
        made = keras.Model([title, body], keras.layers.Dense(1)(x))
        made.compile("sgd", "mse", jit_compile=False)
        return made

    random = np.random.default_rng(0)
    x = {"title": random.random((512, 300), "float32"), "body": random.random((512, 10), "float32")}
    y = random.random((512, 1), "float32")
    ours, plain = model(), model()
    how = {"batch_size": 256, "shuffle": False, "verbose": 0}
    run = memfit.fit(ours, x, y, **how, budget="8MiB").run
    plain.fit(x, y, **how)
    remat = memfit.remat(model(), data=x, batch_size=256)
    return {
        "planned": [run.plan is not None and run.plan.batch_size, list(run.ooms)],
        "far": max(
            float(abs(a - b).max()) for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True)
        ),
        "estimated": memfit.estimate(model(), 256, data=(x, y)).peak_bytes > 1 << 20,
        "rematerialised": remat.peak_bytes < 0.9 * remat.plain_bytes,
    }


def test_names_choose_the_inputs_of_plans_estimates_and_segments() -> None:
    seen = run_limited(_by_name, "64MiB")
    assert seen["planned"] == [256, []]
    assert seen["far"] < 1e-6
    assert seen["estimated"]
    assert seen["rematerialised"]


def _left_out() -> dict[str, Any]:
    import warnings

    import keras
    import numpy as np

    import memfit

    class Sum(keras.layers.Layer):
        def call(self, x: Any, other: Any = None) -> Any:
            return x if other is None else x + other

    def model() -> Any:
        keras.utils.set_random_seed(0)
        x, other = keras.Input((4,), name="x"), keras.Input((4,), name="a", optional=True)
        made = keras.Model({"x": x, "a": other}, keras.layers.Dense(1)(Sum()(x, other)))
        made.compile("sgd", "mse", jit_compile=False)
        return made

    def batches() -> Any:
        for _ in range(2):
            yield {"x": np.ones((8, 4), "float32"), "a": None}, np.ones((8, 1), "float32")

    warnings.simplefilter("ignore")  # Keras warns that a generator is not shuffled, and that it ends
    ours, plain = model(), model()
    losses = [memfit.fit(ours, batches(), verbose=0).history, plain.fit(batches(), verbose=0).history]
    arrays = {"x": np.ones((8, 4), "float32"), "a": None}, np.ones((8, 1), "float32")
    losses += [
        memfit.fit(ours, *arrays, verbose=0, micro_batch_size=4).history,
        plain.fit(*arrays, verbose=0).history,
    ]
    with memfit.protect(ours):
        evaluated = [ours.evaluate(batches(), verbose=0), plain.evaluate(batches(), verbose=0)]
        predicted = len(ours.predict(batches(), verbose=0))
    return {
        "losses": [one["loss"][0] for one in losses],
        "evaluated": evaluated,
        "predicted": predicted,
        "estimated": memfit.estimate(model(), 8, data=arrays).peak_bytes > 0,
        "planned": memfit.plan(model(), 8, "32MiB", data=arrays).fits_as_is,
    }


def test_an_optional_input_may_be_none_wherever_data_is_looked_at() -> None:
    seen = run_limited(_left_out, None)
    first, plain_first, second, plain_second = seen["losses"]
    assert (first, second) == pytest.approx((plain_first, plain_second), rel=1e-6)
    assert seen["evaluated"][0] == pytest.approx(seen["evaluated"][1], rel=1e-6)
    assert seen["predicted"] == 16
    assert seen["estimated"]
    assert seen["planned"]


def _drawn_in_python(layer: str) -> list[list[float]]:
    import keras
    import numpy as np

    import memfit

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            options = {"value_range": (0, 1), "seed": 3}
            if layer == "AugMix":
                options |= {"num_chains": 1, "chain_depth": 1}
            self.mix, self.head = getattr(keras.layers, layer)(**options), keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.head(keras.ops.reshape(self.mix(x, training=training), (-1, 36)))

    random = np.random.default_rng(0)
    x, y = random.random((8, 3, 4, 3)).astype("float32"), np.ones((8, 1), "float32")

    def losses(fit: Any) -> list[float]:
        keras.utils.set_random_seed(7)
        model = Net()
        model.compile("sgd", "mse", jit_compile=False)
        history: list[float] = fit(model, x, y, epochs=3, shuffle=False, verbose=0).history["loss"]
        return history

    return [losses(keras.Model.fit), losses(memfit.fit)]


@pytest.mark.parametrize("layer", ["AugMix", "RandAugment"])
def test_layers_that_draw_while_they_are_traced_draw_as_in_plain_keras(layer: str) -> None:
    plain, ours = run_limited(_drawn_in_python, None, layer=layer)
    assert ours == pytest.approx(plain, rel=1e-6)


def _drawn_by_data(kind: str) -> list[list[float]]:
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    class Rows(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return np.random.rand(8, 4), np.random.rand(8, 1)

    def loss(y: Any, predicted: Any) -> Any:
        if not tf.executing_eagerly():
            time.sleep(0.3)  # while it is traced, the thread that reads data goes on drawing
        return keras.ops.mean((y - predicted) ** 2, axis=-1)

    def losses(fit: Any) -> list[float]:
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss, jit_compile=False)
        rows = Rows()
        data = (rows[place] for place in range(12)) if kind == "generator" else rows
        history: list[float] = fit(model, data, shuffle=False, verbose=0).history["loss"]
        return history

    return [losses(keras.Model.fit), losses(memfit.fit)]


@pytest.mark.parametrize("kind", ["generator", "dataset"])
def test_data_that_draws_in_a_thread_draws_as_in_plain_keras(kind: str) -> None:
    plain, ours = run_limited(_drawn_by_data, None, kind=kind)
    assert ours == pytest.approx(plain, rel=1e-6)


def _mixed_and_flat() -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit

    random = np.random.default_rng(0)
    x = random.random((64, 8, 8, 3), "float32")
    y = x.mean((1, 2, 3))[:, None]
    mixing = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.MixUp(seed=1), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    mixing.compile("sgd", "mse", jit_compile=False)
    notes = list(memfit.fit(mixing, x, y, batch_size=32, verbose=0).run.notes)

    class Scaled(keras.layers.Layer):  # of the user's own, so that it has to be tried how parts add up
        def call(self, x: Any) -> Any:
            return 2.0 * x

    flat = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros"), Scaled()])
    flat.compile("sgd", "mse", jit_compile=False)
    rows, targets = (
        x[:, 0, 0],
        np.concatenate([np.zeros((32, 1)), y[32:]]),
    )  # nothing to learn
    run = memfit.fit(flat, rows, targets, batch_size=32, shuffle=False, epochs=3, verbose=0).run
    ran = memfit.fit(flat, rows, targets, batch_size=32, shuffle=False, verbose=0, micro_batch_size=8).run
    return {"mixed": notes, "flat": [list(run.notes), ran.micro_batch_size]}


def test_what_mixes_samples_is_named_and_a_batch_without_gradients_decides_nothing() -> None:
    seen = run_limited(_mixed_and_flat, None)
    assert seen["mixed"] == [
        "Batches are not split: its layer mix_up mixes the samples of a batch. Each step is guarded whole."
    ]
    notes, micro_batch_size = seen["flat"]
    assert "zero or not finite" in notes[0]
    assert micro_batch_size == 8
