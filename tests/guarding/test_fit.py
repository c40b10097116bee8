"""`memfit.fit` against plain Keras: the same weights, to the bit where nothing is split, else to 1e-12."""

from __future__ import annotations

import time
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

GROUPS = 4  # of the many configurations, each in a process of its own


def _dense(**compile_arguments: Any) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    model = keras.Sequential([
        keras.Input((6,)),
        layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
        layers.Dense(3, activation="softmax"),
    ])  # fmt: skip
    arguments: dict[str, Any] = {
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": keras.losses.SparseCategoricalCrossentropy(),
        "metrics": ["accuracy"],
        "weighted_metrics": [keras.metrics.SparseCategoricalCrossentropy(name="weighted")],
        "jit_compile": False,
    }
    model.compile(**{**arguments, **compile_arguments})
    return model


def _arrays(count: int = 53) -> tuple[Any, Any, Any]:
    import numpy as np

    random = np.random.default_rng(5)
    return random.normal(size=(count, 6)), random.integers(0, 3, count), random.random(count) + 0.1


def _compare(make: Any, arguments: dict[str, Any], *, micro_batch_size: int | None) -> dict[str, Any]:
    """Train plain and guarded."""
    (result,) = _compare_each(make, arguments, micro_batch_sizes=(micro_batch_size,))
    return result


def _compare_each(
    make: Any, arguments: Any, *, micro_batch_sizes: tuple[int | None, ...]
) -> list[dict[str, Any]]:
    """Train plain once, and guarded with each size; a function makes arguments that are used up by a run."""
    import keras

    import memfit
    from guarding.small_models import difference, variables

    def train(fit: Any, **options: Any) -> tuple[Any, list[Any]]:
        keras.utils.clear_session(free_memory=False)  # equal names: TensorFlow orders some sums by name
        keras.utils.set_random_seed(11)
        model = make()
        given = arguments() if callable(arguments) else arguments
        return fit(model, **{**given, **options, "verbose": 0}), variables(model)

    plain, plain_values = train(keras.Model.fit)
    results = []
    for size in micro_batch_sizes:
        history, values = train(memfit.fit, micro_batch_size=size, plan=False)
        logs = [
            abs(a - b) / max(1e-9, abs(b))
            for name, numbers in plain.history.items()
            for a, b in zip(history.history[name], numbers, strict=True)
        ]
        results.append({
            "difference": difference(values, plain_values),
            "logs": max(logs),
            "names": sorted(plain.history) == sorted(history.history),
            "moved": max(history.history["loss"]) - min(history.history["loss"]),
            "run": history.run.to_dict(),
        })  # fmt: skip
    return results


def _cases(group: int) -> dict[str, Any]:  # noqa: C901 - many small models
    """Many models and feeds in one process, each split into parts of 5 and not split at all."""
    import keras
    import numpy as np
    import tensorflow as tf

    from guarding.small_models import prepare
    from memfit.private.keras.global_state import global_seed_states

    prepare(floatx="float64")
    x, y, w = _arrays()
    losses = keras.losses
    base: dict[str, Any] = {"x": x, "y": y, "batch_size": 16, "epochs": 3, "verbose": 0}

    def dataset() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y, w)).batch(16)

    def batches() -> Any:
        for _ in range(3):
            for start in range(0, 53, 16):
                yield x[start : start + 16], y[start : start + 16]

    def two_outputs(*, run_eagerly: bool = False) -> Any:
        keras.utils.set_random_seed(3)
        first, second = keras.Input((6,), name="first"), keras.Input((6,), name="second")
        joined = keras.layers.Concatenate()([first, second])
        outputs = {"sum": keras.layers.Dense(1)(joined), "part": keras.layers.Dense(2)(joined)}
        model = keras.Model({"first": first, "second": second}, outputs)
        losses_by_name, weights_by_name = {"sum": "mse", "part": "mae"}, {"sum": 0.3, "part": 2.0}
        model.compile(
            "sgd", losses_by_name, loss_weights=weights_by_name, jit_compile=False, run_eagerly=run_eagerly
        )
        return model

    def frozen() -> Any:
        model = _dense()
        model.layers[0].trainable = False
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    def deferred() -> Any:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3)])
        model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        return model

    def embedding() -> Any:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(50, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ])  # fmt: skip
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    def noisy() -> Any:
        """Draws from Keras' global generator, which must be staged too."""
        keras.utils.set_random_seed(3)
        inputs = keras.Input((6,))
        noise = keras.layers.Lambda(
            lambda t: t + 0.1 * keras.random.normal(keras.ops.shape(t)[1:], dtype=t.dtype)
        )
        model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(noise(inputs)))
        for state in global_seed_states():
            state.assign([3, 0])  # older Kerases do not reset it with the seed
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    class FreezeLater(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].trainable = epoch != 0

    class TrainsMore(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.train_on_batch(x[:4], y[:4])
            self.model.evaluate(x[:8], y[:8], verbose=0)

    class OwnTestStep(keras.Sequential):
        def test_step(self, data: Any) -> Any:
            return {**super().test_step(data), "samples": tf.shape(data[0])[0]}

    def own_test_step() -> Any:
        keras.utils.set_random_seed(3)
        model = OwnTestStep([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    double = {"first": x, "second": x[:, ::-1].copy()}
    targets = {"sum": x.sum(axis=1, keepdims=True), "part": x[:, :2]}
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "arrays, shuffled": (_dense, base),
        "arrays, in order": (_dense, {**base, "shuffle": False}),
        "sample weights": (_dense, {**base, "sample_weight": w}),
        "class weights": (_dense, {**base, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
        "validation split": (_dense, {**base, "validation_split": 0.2}),
        "validation data": (_dense, {**base, "validation_data": (x[:9], y[:9])}),
        "sum": (lambda: _dense(loss=losses.SparseCategoricalCrossentropy(reduction="sum")), base),
        "dataset": (_dense, {"x": dataset(), "epochs": 3, "verbose": 0}),
        "steps per epoch": (
            _dense,
            {"x": dataset().repeat(), "epochs": 2, "steps_per_epoch": 5, "verbose": 0},
        ),
        "steps per execution": (lambda: _dense(steps_per_execution=2), base),
        "eager": (lambda: _dense(run_eagerly=True), base),
        "clipping, decay, EMA": (
            lambda: _dense(optimizer=keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True)),
            base,
        ),
        "schedule": (
            lambda: _dense(
                optimizer=keras.optimizers.SGD(
                    keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.1, 0.03, 0.2]), momentum=0.9
                )
            ),
            base,
        ),
        "XLA": (lambda: _dense(jit_compile=True), base),
        "frozen layer": (frozen, base),
        "accumulating optimizer": (
            lambda: _dense(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)),
            base,
        ),
        "weights that are not given": (
            lambda: _dense(loss=losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")),
            base,
        ),
        "frozen on the way": (
            lambda: _dense(run_eagerly=True),
            {**base, "callbacks": [FreezeLater()], "shuffle": False},
        ),
        "outputs, eager": (
            lambda: two_outputs(run_eagerly=True),
            {**base, "x": double, "y": targets, "shuffle": False},
        ),
        "own test_step": (own_test_step, {**base, "validation_data": (x[:9], y[:9])}),
        "callback that trains": (_dense, {**base, "callbacks": [TrainsMore()]}),
        "tensors": (_dense, {**base, "x": tf.constant(x), "y": tf.constant(y)}),
        "inputs and outputs by name": (two_outputs, {**base, "x": double, "y": targets}),
        "not built yet": (deferred, base),
        "embedding": (embedding, {**base, "x": np.abs(x * 10).astype("int32") % 50}),
    }
    results = {
        name: _compare_each(make, arguments, micro_batch_sizes=(None, 5))
        for name, (make, arguments) in list(cases.items())[group::GROUPS]
    }
    if group != 0:
        return results
    results["global seed"] = [_compare(noisy, base, micro_batch_size=None)]
    # Where a generator just ends, plain Keras counts one step too many: it runs into the end.
    results["generator"] = _compare_each(
        _dense,
        lambda: {"x": batches(), "epochs": 3, "steps_per_epoch": 4, "shuffle": False},
        micro_batch_sizes=(None, 5),
    )
    return results


@pytest.mark.parametrize("group", range(GROUPS))
def test_split_or_not_the_weights_are_those_of_plain_keras(group: int) -> None:
    cases = run_limited(_cases, "2GiB", group=group)
    assert len(cases) >= 6
    wrong = {
        name: (result["difference"], result["logs"])
        for name, results in cases.items()
        for result in results
        if result["difference"] > 1e-12 or result["logs"] > 1e-9 or not result["names"]
    }
    assert not wrong
    for name, results in cases.items():
        assert results[0]["moved"] > 1e-3, f"{name} did not train"
        if len(results) > 1:
            assert results[1]["run"]["micro_batches"] == [{"step": 0, "micro_batch_size": 5}]
            assert results[0]["run"]["micro_batches"][0]["micro_batch_size"] == 16


def _normalised(steps: int = 128) -> Any:
    """Dropout and BatchNorm, and activations that are large beside the weights."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    model = keras.Sequential([
        keras.Input((steps, 64)),
        layers.Dense(64, activation="relu"),
        layers.BatchNormalization(),
        layers.Dense(64, activation="tanh"),
        layers.Dropout(0.3),
        layers.GlobalAveragePooling1D(),
        layers.Dense(4, activation="softmax"),
    ])  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def _train_normalised(micro_batch_size: int | None) -> dict[str, Any]:
    import logging

    import numpy as np

    import memfit
    from guarding.small_models import digest, prepare

    prepare(floatx="float32", deterministic=True)
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    random = np.random.default_rng(0)
    x, y = random.random((320, 128, 64), "float32"), random.integers(0, 4, 320)
    model = _normalised()
    before = (model.train_function, "make_train_function" in vars(model))
    history = memfit.fit(
        model, x, y, batch_size=256, epochs=2, verbose=0, micro_batch_size=micro_batch_size, plan=False
    )
    after = (model.train_function, "make_train_function" in vars(model))
    return {
        "digest": digest(model),
        "run": history.run.to_dict(),
        "loss": history.history["loss"],
        "untouched": before == after,
        "messages": messages,
    }


def test_a_real_oom_costs_nothing_but_time() -> None:
    limited = run_limited(_train_normalised, "32MiB", micro_batch_size=None)
    run = limited["run"]
    assert run["ooms"], "the limit did not bite"
    assert run["peak_bytes"] <= 32 * 2**20
    size = run["micro_batches"][-1]["micro_batch_size"]
    assert [change["step"] for change in run["micro_batches"]] == [0], "all of it must go into the first step"
    reference = run_limited(_train_normalised, "2GiB", micro_batch_size=size)
    assert reference["run"]["ooms"] == []
    # BatchNorm statistics, the dropout seed, metrics, slots and the step counter too, to the bit.
    assert limited["digest"] == reference["digest"]
    assert limited["loss"] == reference["loss"]
    assert limited["untouched"] is True
    assert any("ran out of memory at micro-batch 256" in message for message in limited["messages"])
    for note in ("BatchNormalization takes", "Random layers such as Dropout draw"):
        assert sum(note in message for message in limited["messages"]) == 1
        assert sum(note in message for message in reference["messages"]) == 1
    assert run["ooms"][0]["error"]["requested_bytes"] > 0


def _validate_in_large_batches() -> dict[str, Any]:
    import numpy as np

    import memfit
    from guarding.small_models import digest, prepare

    prepare(floatx="float32", deterministic=True)
    random = np.random.default_rng(0)
    x, y = random.random((512, 128, 64), "float32"), random.integers(0, 4, 512)
    model = _normalised()
    history = memfit.fit(
        model, x[:64], y[:64], batch_size=32, epochs=2, verbose=0,
        validation_data=(x, y), validation_batch_size=512, plan=False,
    )  # fmt: skip
    return {
        "digest": digest(model, metrics=False),
        "logs": history.history,
        "phases": [oom.phase for oom in history.run.ooms],
        "peak": history.run.peak_bytes,
        "attached": "make_test_function" in vars(model) or model.test_function is not None,
    }


def test_validation_that_runs_out_goes_on_too() -> None:
    tight = run_limited(_validate_in_large_batches, "32MiB")
    roomy = run_limited(_validate_in_large_batches, "2GiB")
    assert set(tight["phases"]) == {"evaluation"}
    assert roomy["phases"] == []
    assert tight["peak"] <= 32 * 2**20
    assert tight["digest"] == roomy["digest"]
    for name, values in roomy["logs"].items():
        assert tight["logs"][name] == pytest.approx(values, rel=1e-6)
    assert tight["attached"] is False


BATCH_BYTES = 64 * 65536 * 4


def _memory_between_batches(guarded: bool) -> list[int]:
    import keras
    import tensorflow as tf

    import memfit

    held: list[int] = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends = time.monotonic() + 3  # other threads let go a little later; what is kept stays
            held.append(memfit.devices.device_memory().current_bytes)
            while held[-1] > BATCH_BYTES / 2 and time.monotonic() < ends:
                time.sleep(0.01)
                held[-1] = memfit.devices.device_memory().current_bytes

    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # some read batches ahead
    batches = tf.data.Dataset.range(3).map(lambda _: (tf.ones((64, 65536)), tf.ones((64, 1))))
    model = keras.Sequential([keras.Input((65536,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    arguments: dict[str, Any] = {"callbacks": [Reads()], "verbose": 0, "shuffle": False}
    if guarded:
        memfit.fit(model, batches.with_options(options), **arguments)
    else:
        model.fit(batches.with_options(options), **arguments)
    return held


def test_no_batch_is_kept_when_its_step_is_over() -> None:
    plain = run_limited(_memory_between_batches, "512MiB", guarded=False)
    ours = run_limited(_memory_between_batches, "512MiB", guarded=True)
    assert max(ours) < max(plain) + BATCH_BYTES / 2


def _does_not_fit() -> dict[str, Any]:
    import numpy as np

    import memfit
    from guarding.small_models import digest, prepare

    prepare(floatx="float32")
    model = _normalised(steps=2**16)
    x, y = np.zeros((2, 2**16, 64), "float32"), np.zeros(2, "int64")
    memfit.fit(model, x[:1, :8], y[:1], batch_size=1, verbose=0)  # so that there is something to lose
    before = digest(model, metrics=False)  # Keras itself resets metrics when an epoch begins
    try:
        memfit.fit(model, x, y, batch_size=2, verbose=0, plan=False)
    except memfit.errors.DoesNotFit as error:
        unchanged = before == digest(model, metrics=False)
        return {"error": str(error), "unchanged": unchanged, "limit": error.limit_bytes}
    return {}


def test_what_fits_in_no_way_is_said_and_changes_nothing() -> None:
    seen = run_limited(_does_not_fit, "32MiB")
    assert seen["error"].startswith("a step on one sample does not fit: the limit is 32.0 MiB.\n")
    assert "The model is as it was after step 0." in seen["error"]
    assert seen["limit"] == 32 * 2**20
    assert seen["unchanged"] is True


def _refusals() -> dict[str, str]:
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit
    from guarding.small_models import digest, prepare

    prepare()
    x, y, _ = _arrays()
    seen: dict[str, str] = {}

    def refused(name: str, model: Any, **arguments: Any) -> None:
        weights = getattr(model, "get_weights", list)
        before = [value.tobytes() for value in weights()]
        try:
            memfit.fit(model, **{"x": x, "y": y, "verbose": 0, "batch_size": 16, **arguments})
        except Exception as error:  # noqa: BLE001 - the test judges what came
            seen[name] = f"{type(error).__name__}: {error}"
        else:
            seen[name] = "trained"
        if before != [value.tobytes() for value in weights()]:
            seen[name] += " AND THE MODEL HAS CHANGED"

    refused("not compiled", keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
    refused("not a model", "model")
    refused("micro batch of nothing", _dense(), micro_batch_size=0)
    refused("micro batch of half", _dense(), micro_batch_size=0.5)
    refused("budget", _dense(), budget="8gigs")
    refused("lengths", _dense(), y=y[:-1])
    refused("no data", _dense(), x=x[:0], y=y[:0])
    refused(
        "nothing in it", _dense(), x=tf.data.Dataset.from_tensors((x, y)).take(0), y=None, batch_size=None
    )
    refused("rows differ", _dense(), x=iter([(x[:8], y[:7])]), y=None, batch_size=None)

    def raises_in_the_middle() -> Any:
        yield x[:16], y[:16]
        raise RuntimeError("from the generator")

    broken = _dense()
    try:
        memfit.fit(broken, raises_in_the_middle(), steps_per_epoch=2, verbose=0)
    except Exception as error:  # noqa: BLE001 - TensorFlow wraps it
        seen["generator"] = f"{error}; iterations {int(broken.optimizer.iterations)}"

    infinite = _dense()
    history = memfit.fit(infinite, x * np.inf, y, batch_size=16, verbose=0, micro_batch_size=8)
    seen["NaN"] = str(history.history["loss"][0])

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("from a callback")

    model = _dense()
    try:
        memfit.fit(model, x, y, batch_size=16, verbose=0, callbacks=[Fails()])
    except RuntimeError as error:
        attached = "make_train_function" in vars(model)
        seen["callback"] = f"{error}; iterations {int(model.optimizer.iterations)}; attached {attached}"
    model.fit(x, y, batch_size=16, verbose=0)
    seen["plain afterwards"] = f"iterations {int(model.optimizer.iterations)}; {len(digest(model))} variables"
    return seen


def test_bad_input_is_refused_and_nothing_changes() -> None:
    seen = run_limited(_refusals, "2GiB")
    assert "the model is not compiled" in seen["not compiled"]
    assert "expected a keras.Model, received str" in seen["not a model"]
    assert "Received: micro_batch_size=0 (int)" in seen["micro batch of nothing"]
    assert "Received: micro_batch_size=0.5 (float)" in seen["micro batch of half"]
    assert 'Received: budget="8gigs" (str)' in seen["budget"]
    assert seen["lengths"].startswith("ValueError")
    assert "HAS CHANGED" not in str(seen)
    assert seen["nothing in it"].startswith("ValueError")
    assert seen["rows differ"].startswith(("BatchSizesDiffer", "ValueError", "InvalidArgumentError"))
    assert "from the generator" in seen["generator"]
    assert seen["generator"].endswith(("iterations 0", "iterations 1")), "TensorFlow may read ahead"
    assert seen["NaN"] == "nan", "a loss that is not a number is the user's, not an error"
    assert seen["callback"] == "from a callback; iterations 1; attached False"
    assert seen["plain afterwards"].startswith("iterations 5;")
