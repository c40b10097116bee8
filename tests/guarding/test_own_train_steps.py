"""Losses, masks and steps of the user's own: split where parts add up, said and guarded whole where not."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.test_fit import _arrays, _compare, _compare_each, _dense
from limited import run_limited

pytestmark = pytest.mark.real

GROUPS = 3


def _sequential(*layers: Any, loss: Any = "sparse_categorical_crossentropy", **options: Any) -> Any:
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(list(layers))
    model.compile("adam", loss, jit_compile=False, **options)
    return model


def _masked() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    inputs = keras.Input((7,), dtype="int32")
    x = layers.LSTM(5, return_sequences=True)(layers.Embedding(9, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, layers.Dense(6, activation="softmax")(x))
    accuracy = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False, **accuracy)
    return model


def _two_reductions() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    outputs = {"a": layers.Dense(3, activation="softmax")(x), "b": layers.Dense(1)(x)}
    model = keras.Model(inputs, outputs)
    by_weights = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    model.compile(
        "adam", {"a": by_weights, "b": keras.losses.MeanSquaredError(reduction="sum")}, jit_compile=False
    )
    return model


def _adds(reduce: Any, **options: Any) -> Any:
    import keras
    from keras import layers

    class AddsLoss(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * reduce(x**2))
            return x

    return _sequential(
        keras.Input((6,)), layers.Dense(5, **options), AddsLoss(), layers.Dense(3, activation="softmax")
    )


def _own(kind: str) -> Any:  # noqa: C901 - one small difference for each kind
    """A model with a step or a loss of its own."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class OwnStep(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=p)
                if kind in ("own mean", "own sum"):
                    each = keras.losses.sparse_categorical_crossentropy(y, p)
                    loss = ops.mean(each) if kind == "own mean" else ops.sum(each)
                if kind == "pairs":
                    loss = ops.mean((p[:, None, 0] - p[None, :, 0]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            if kind == "clipped by hand":
                gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            if kind == "under a condition":
                tf.cond(loss < 100.0, lambda: self._update(gradients), lambda: None)
            else:
                self._update(gradients)
            if kind == "writes a tf.Variable":
                self.counter.assign_add(1)
            if kind == "calls Python":
                tf.py_function(lambda: None, [], [])
            self.seen.update_state(loss)
            return {"loss": self.seen.result(), "raw": loss}

        def _update(self, gradients: Any) -> None:
            self.optimizer.apply(gradients, self.trainable_variables)

    class OwnLoss(keras.Sequential):  # type: ignore[misc]
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
        ) -> Any:
            if kind == "own compute_loss":
                return ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred))
            return super().compute_loss(x, y, y_pred) + 0.1 * ops.mean(y_pred**2)

    class Decorated(keras.Sequential):  # type: ignore[misc]
        @tf.function
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    class WantsTheSize(keras.Model):  # type: ignore[misc]
        def __init__(self, layers: Any) -> None:
            super().__init__()
            self.last = layers[-1]

        def call(self, x: Any) -> Any:
            return self.last(tf.concat([x[row : row + 1] for row in range(x.shape[0])], axis=0))

    keras.utils.set_random_seed(3)
    kinds = {
        "own compute_loss": OwnLoss, "added to Keras' loss": OwnLoss, "decorated": Decorated,
        "static sizes": WantsTheSize,
    }  # fmt: skip
    model = kinds.get(kind, OwnStep)([
        keras.Input((6,)), layers.Dense(3, activation="softmax", kernel_regularizer="l2"),
    ])  # fmt: skip
    model.seen = keras.metrics.Mean(name="seen")
    model.counter = tf.Variable(0)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def _cases() -> dict[str, Any]:
    import keras
    import numpy as np
    from keras import layers, losses, ops

    x, y, w = _arrays(48)
    base: dict[str, Any] = {"x": x, "y": y, "batch_size": 16, "epochs": 3}
    random = np.random.default_rng(1)
    tokens = random.integers(1, 6, (48, 7)) * (np.arange(7) < random.integers(2, 8, (48, 1)))
    sequences = {**base, "x": tokens, "y": tokens % 6}
    ignoring = losses.SparseCategoricalCrossentropy(ignore_class=0)
    unreduced = losses.SparseCategoricalCrossentropy(reduction=None)
    by_weights = losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "masks": (_masked, sequences),
        "masks and weights": (_masked, {**sequences, "sample_weight": w[:, None] + 0.0 * tokens}),
        "classes left out": (lambda: _dense(loss=ignoring), {**base, "sample_weight": w}),
        "mean over weights": (lambda: _dense(loss=by_weights), {**base, "sample_weight": w}),
        "two reductions": (
            _two_reductions,
            {**base, "y": {"a": y, "b": x[:, :1]}, "sample_weight": {"a": w, "b": w**2}},
        ),
        "no reduction": (
            lambda: _sequential(keras.Input((6,)), layers.Dense(3, activation="softmax"), loss=unreduced),
            base,
        ),
        "added mean": (lambda: _adds(ops.mean), base),
        "added sum": (lambda: _adds(ops.sum, kernel_regularizer="l2"), base),
        "activity": (lambda: _adds(ops.mean, activity_regularizer="l2"), base),
        "metric that counts batches": (lambda: _dense(metrics=[lambda y, p: ops.mean(p)]), base),
        "own loss": (
            lambda: _dense(loss=lambda y, p: 2 * losses.sparse_categorical_crossentropy(y, p)),
            base,
        ),
        "class weights and a split": (
            _dense,
            {**base, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "validation_split": 0.2},
        ),
        "Nadam": (lambda: _dense(optimizer=keras.optimizers.Nadam(0.01)), base),
    }
    for kind in (
        "plain", "own mean", "own sum", "own compute_loss", "added to Keras' loss", "decorated",
        "static sizes",
    ):  # fmt: skip
        cases[kind] = (lambda kind=kind: _own(kind), base)
    return cases


def _split(group: int) -> dict[str, Any]:
    from guarding.small_models import prepare

    prepare(floatx="float64", deterministic=True)
    return {
        name: _compare_each(make, arguments, micro_batch_sizes=(None, 5))
        for name, (make, arguments) in list(_cases().items())[group::GROUPS]
    }


@pytest.mark.parametrize("group", range(GROUPS))
def test_parts_add_up_to_the_whole(group: int) -> None:
    cases = run_limited(_split, "2GiB", group=group)
    wrong = {
        name: (result["difference"], result["logs"])
        for name, results in cases.items()
        for result in results
        if result["difference"] > 1e-12 or result["logs"] > 1e-9 or not result["names"]
    }
    assert len(cases) >= 6
    assert not wrong
    for name, (whole, parts) in cases.items():
        assert whole["difference"] == 0.0, f"{name} is not plain Keras' although nothing was split"
        assert parts["run"]["micro_batches"] == [{"step": 0, "micro_batch_size": 5}], name


def _unsplit() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers, losses

    import memfit
    from guarding.small_models import prepare
    from guarding.zoo import data_for
    from guarding.zoo import make as make_kind

    prepare(floatx="float64", deterministic=True)
    x, y, _ = _arrays(48)
    base: dict[str, Any] = {"x": x, "y": y, "batch_size": 16, "epochs": 2}

    class Signs(keras.optimizers.SGD):  # type: ignore[misc]
        def apply_gradients(self, pairs: Any) -> Any:
            return super().apply_gradients([(keras.ops.sign(g), v) for g, v in pairs])

    def stateful() -> Any:
        return _sequential(
            keras.Input(batch_shape=(16, 3, 2)), layers.LSTM(4, stateful=True), layers.Dense(3, "softmax")
        )

    sparse = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(16)
    one_hot = {**base, "y": np.eye(3)[y]}
    bare = {"metrics": [], "weighted_metrics": []}
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "two updates": (
            lambda: make_kind("GAN with two optimizers"),
            {**data_for("GAN with two optimizers", count=48), "batch_size": 16},
        ),
        "assigns to a weight": (
            lambda: _sequential(keras.Input((6,)), layers.SpectralNormalization(layers.Dense(3, "softmax"))),
            base,
        ),
        "stateful": (stateful, {**base, "x": x.reshape(48, 3, 2)}),
        "own apply_gradients": (lambda: _dense(optimizer=Signs()), base),
        "compares samples": (lambda: _dense(loss=losses.Circle(), **bare), base),
        "one number": (lambda: _dense(loss=losses.Dice(), **bare), one_hot),
        "one number by name": (lambda: _dense(loss="dice", **bare), one_hot),
        "sparse": (
            lambda: _sequential(keras.Input((6,), sparse=True), layers.Dense(3, "softmax")),
            {"x": sparse, "epochs": 2, "shuffle": False},
        ),
    }
    for kind in ("pairs", "clipped by hand", "under a condition", "writes a tf.Variable", "calls Python"):
        cases[kind] = (lambda kind=kind: _own(kind), base)
    results: dict[str, Any] = {}
    for name, (make, arguments) in cases.items():
        results[name] = _compare(make, arguments, micro_batch_size=None)
        model = make()
        try:
            memfit.fit(model, **arguments, verbose=0, micro_batch_size=5)
        except memfit.errors.CannotGuard as error:
            results[name]["refused"] = str(error).splitlines()[0]
    return results


def test_what_does_not_add_up_is_said_and_stays_plain_keras() -> None:
    seen = run_limited(_unsplit, "2GiB")
    reasons = {
        "two updates": "the step makes 2 updates",
        "assigns to a weight": "which is a trainable weight",
        "stateful": "its inputs have a fixed batch size",
        "own apply_gradients": "gradients are changed between the tape and the update",
        "compares samples": "its loss circle compares samples with each other",
        "one number": "neither the mean nor the sum",
        "one number by name": "neither the mean nor the sum",
        "sparse": "a batch holds a SparseTensor",
        "pairs": "neither the mean nor the sum",
        "clipped by hand": "gradients are changed between the tape and the update",
        "under a condition": "under a condition or in a loop",
        "writes a tf.Variable": "writes Variable:0 outside Keras",
        "calls Python": "calls Python code, which runs again in a second try",
    }
    assert sorted(seen) == sorted(reasons)
    for name, reason in reasons.items():
        assert seen[name]["difference"] < 1e-15, name
        assert reason in seen[name]["run"]["notes"][0], name
        assert reason in seen[name]["refused"], name
    assert any(
        note.startswith("Not exact after an out-of-memory error: it calls Python")
        for note in seen["calls Python"]["run"]["notes"]
    )


def _twins() -> dict[str, Any]:
    import keras
    import numpy as np
    from keras import layers, ops

    import memfit

    def contrastive(y: Any, distance: Any) -> Any:
        return ops.mean(y * distance**2 + (1 - y) * ops.maximum(1.0 - distance, 0.0) ** 2)

    keras.utils.set_random_seed(0)
    pixels = keras.Input((16, 16, 1))
    x = layers.Conv2D(24, 3, activation="tanh", padding="same")(pixels)
    x = layers.Conv2D(24, 3, activation="tanh", padding="same")(x)
    twin = keras.Model(pixels, layers.Dense(16)(layers.GlobalAveragePooling2D()(x)))
    first, second = keras.Input((16, 16, 1)), keras.Input((16, 16, 1))
    apart = ops.sum((twin(first) - twin(second)) ** 2, axis=1, keepdims=True)
    model = keras.Model([first, second], ops.sqrt(ops.maximum(apart, 1e-7)))
    model.compile("sgd", contrastive)
    random = np.random.default_rng(0)
    y = random.integers(0, 2, (16, 1)).astype("float32")
    x1 = random.random((16, 16, 16, 1)).astype("float32")
    x2 = x1 + np.where(y[..., None, None], 0.05, 0.5) * random.normal(size=x1.shape)
    data = {"x": [x1, x2.astype("float32")], "y": y, "batch_size": 16, "verbose": 0}
    run = memfit.fit(model, **data, micro_batch_size=4).run
    return {"size": run.micro_batch_size, "notes": run.notes}


def test_gradients_that_rounding_alone_moves_far_are_split() -> None:
    """Those of twins nearly cancel out: what is left has lost three of its seven digits."""
    seen = run_limited(_twins, "2GiB")
    assert seen["size"] == 4
    assert not any("not split" in note for note in seen["notes"])


def _hardly_any_room(limit: str | None) -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit

    class Doubled(keras.layers.Layer):  # type: ignore[misc]  # of the user's own, so that it has to be tried
        def call(self, x: Any) -> Any:
            return 2.0 * x

    keras.utils.set_random_seed(3)
    wide = [keras.layers.Dense(1024, "tanh") for _ in range(4)]  # 16 MiB of weights, as much of each slot
    model = _sequential(keras.Input((1024,)), *wide, Doubled(), keras.layers.Dense(1), loss="mse")
    x = np.random.default_rng(0).random((16, 1024), "float32")
    plan = {} if limit is None else {"plan": False}
    fit = keras.Model.fit if limit is None else memfit.fit
    history = fit(model, x, x[:, :1], batch_size=8, shuffle=False, epochs=2, verbose=0, **plan)
    run = getattr(history, "run", None)
    seen: dict[str, Any] = {"notes": list(run.notes), "ooms": len(run.ooms)} if run else {}
    return {**seen, "weights": [[float(w.mean()), float(w.std())] for w in model.get_weights()]}


def test_a_split_is_not_tried_where_not_even_gradients_fit() -> None:
    ours, plain = (run_limited(_hardly_any_room, limit, limit=limit) for limit in ("62MiB", None))
    assert any("there is no room to try it on a few samples" in note for note in ours["notes"])
    assert ours["ooms"] <= 1
    for found, wanted in zip(ours["weights"], plain["weights"], strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
