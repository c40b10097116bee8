"""Plans made when the first batch is there: for models that are not built yet, and for any kind of data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

BATCH, STEPS = 32, 3
BUDGET = "96MiB"


def _convolutions() -> list[Any]:
    from keras import layers

    return [layers.Conv2D(width, 3, padding="same", activation="relu") for width in (16, 32, 16)]


def _unbuilt() -> Any:
    import keras

    return keras.Sequential([*_convolutions(), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])


def _subclassed() -> Any:
    import keras

    class Network(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = _convolutions()
            self.head = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            for layer in self.hidden:
                x = layer(x)
            return self.head(keras.ops.mean(x, axis=(1, 2)))

    return Network()


def _coder() -> Any:
    """A model whose step takes no targets and never calls the model, as many autoencoders are written."""
    import keras
    import tensorflow as tf

    class Coder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential(_convolutions())
            self.decoder = keras.layers.Conv2D(3, 3, padding="same")
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker]

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                error = data - self.decoder(self.encoder(data))
                loss = tf.reduce_mean(error**2)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    return Coder()


MODELS = {"unbuilt": _unbuilt, "subclassed": _subclassed, "coder": _coder}


def _train(name: str, kind: str, *, guarded: bool) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    keras.utils.set_random_seed(3)
    model, random = MODELS[name](), np.random.default_rng(0)
    x = random.random((STEPS * BATCH, 64, 64, 3), "float32")
    y = random.random((STEPS * BATCH, 3), "float32")
    parts = (x,) if name == "coder" else (x, y)
    loss = None if name == "coder" else "mse"
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)

    def batches() -> Iterator[Any]:
        for start in range(0, len(x), BATCH):
            rows = tuple(part[start : start + BATCH] for part in parts)
            yield rows if len(rows) > 1 else rows[0]

    given: dict[str, Any] = {"x": parts[0], "batch_size": BATCH, "shuffle": False}
    if len(parts) > 1:
        given["y"] = y
    if kind == "generator":
        given = {"x": batches(), "steps_per_epoch": STEPS}
    if kind == "dataset":
        shapes = tuple(tf.TensorSpec((None, *part.shape[1:]), tf.float32) for part in parts)
        spec = shapes if len(shapes) > 1 else shapes[0]
        given = {"x": tf.data.Dataset.from_generator(batches, output_signature=spec)}
    fit = memfit.fit if guarded else type(model).fit
    history = fit(model, **given, verbose=0)
    weights = [weight.ravel().tolist() for weight in model.get_weights()]
    run = history.run if guarded else None
    said = None if run is None else [run.plan is not None, len(run.ooms), run.micro_batch_size, *run.notes]
    return {"weights": weights, "said": said}


CASES = [
    ("unbuilt", "arrays"), ("unbuilt", "generator"), ("subclassed", "arrays"), ("subclassed", "dataset"),
    ("coder", "arrays"), ("coder", "dataset"),
]  # fmt: skip


def _train_all(*, guarded: bool) -> list[dict[str, Any]]:
    return [_train(name, kind, guarded=guarded) for name, kind in CASES]


def test_training_is_planned_at_its_first_batch_and_does_not_run_out() -> None:
    guarded, plain = (
        run_limited(_train_all, BUDGET, guarded=True),
        run_limited(_train_all, None, guarded=False),
    )
    for case, ours, theirs in zip(CASES, guarded, plain, strict=True):
        is_planned, ooms, size, *notes = ours["said"]
        assert is_planned, (case, notes)
        assert ooms == 0, (case, notes)
        assert size < BATCH, (case, notes)
        assert notes[0].startswith("To stay within"), case
        for one, other in zip(ours["weights"], theirs["weights"], strict=True):
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-5, case


def _epoch_by_epoch() -> list[Any]:
    """A loop of the user's own over epochs: planned once, though nothing but itself tells the model apart."""
    import logging

    import keras
    import numpy as np

    import memfit

    told: list[str] = []
    logger = logging.getLogger("memfit")
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    keras.utils.set_random_seed(3)
    model = _subclassed()
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).random((BATCH, 64, 64, 3), "float32")
    runs = [memfit.fit(model, x, x[:, 0, 0], batch_size=BATCH, verbose=0).run for _ in range(3)]
    planned = [one for one in told if one.startswith("Planning for batches")]
    return [len(planned), [run.micro_batch_size for run in runs], [len(run.ooms) for run in runs]]


def test_a_model_that_is_trained_again_is_planned_once() -> None:
    planned, sizes, ooms = run_limited(_epoch_by_epoch, BUDGET)
    assert planned == 1
    assert len(set(sizes)) == 1
    assert ooms == [0, 0, 0]
