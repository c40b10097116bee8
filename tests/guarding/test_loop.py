"""`memfit.step`: custom loops, against the same loop written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.test_fit import _arrays
from limited import run_limited

pytestmark = pytest.mark.real


def _loop(size: Any, kind: str, *, outputs: bool) -> tuple[list[Any], list[Any]]:
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers, ops

    import memfit

    keras.utils.set_random_seed(3)
    x, y, _ = _arrays()
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def loss_of(x: Any, y: Any) -> Any:
        logits = model(x, training=True)
        each = crossentropy(y, logits)
        accuracy.update_state(y, logits)
        loss = ops.sum(each) if kind == "sum" else ops.mean(each)
        return (
            (loss, {"each": each, "mean": ops.mean(logits), "so far": accuracy.result()}) if outputs else loss
        )

    def by_hand(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            result = loss_of(x, y)
        gradients = tape.gradient(result[0] if outputs else result, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return result

    step = by_hand
    if size != "by hand":
        step = memfit.step(loss_of, optimizer, model.trainable_variables, micro_batch_size=size)
    results = [step(x[at : at + 16], y[at : at + 16]) for _ in range(2) for at in range(0, 53, 16)]
    values = [v.numpy() for v in (*model.variables, *optimizer.variables, *accuracy.variables)]
    return values, [np.asarray(leaf) for leaf in keras.tree.flatten(results)]


def _all_loops() -> dict[str, list[float]]:
    from guarding.small_models import difference, prepare

    prepare(floatx="float64", deterministic=True)
    seen: dict[str, list[float]] = {}
    for kind in ("mean", "sum"):
        for outputs in (False, True):
            variables, results = _loop("by hand", kind, outputs=outputs)
            for size in (None, 5):
                ours, received = _loop(size, kind, outputs=outputs)
                shapes = [a.shape == b.shape for a, b in zip(results, received, strict=True)]
                assert all(shapes)
                seen[f"{kind}, {outputs}, {size}"] = [
                    difference(variables, ours),
                    difference(results, received),
                ]
    return seen


def test_a_split_loop_is_the_loop_written_by_hand() -> None:
    seen = run_limited(_all_loops, "2GiB")
    assert len(seen) == 8
    for name, (variables, results) in seen.items():
        assert variables < 1e-12, name
        assert results < 1e-12, name


def _traces_by_size() -> dict[str, list[int]]:
    """How often a loss function was called after batches of each size; the optimizer is not built yet."""
    import keras
    from keras import ops

    import memfit

    x, _, _ = _arrays()
    x = x.astype("float32")
    seen: dict[str, list[int]] = {}
    for asked in (None, 8):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
        calls: list[Any] = []

        def mean(x: Any, model: Any = model, calls: list[Any] = calls) -> Any:
            calls.append(x.shape[0])
            return ops.mean(model(x, training=True) ** 2)

        step = memfit.step(mean, keras.optimizers.Adam(), model.trainable_variables, micro_batch_size=asked)
        seen[str(asked)] = []
        for rows in (16, 15, 14, 13):
            step(x[:rows])
            seen[str(asked)].append(len(calls))
    return seen


def test_batches_of_other_sizes_are_not_traced_anew() -> None:
    seen = run_limited(_traces_by_size, "2GiB")
    assert len(set(seen["None"])) == 1
    _, *others = seen["8"]  # only the first of 15 has a part that is not of the size that was asked for
    assert len(set(others)) == 1


def _refusals() -> dict[str, str]:
    import keras
    import tensorflow as tf
    from keras import ops

    import memfit

    x, y, _ = _arrays()
    x = x.astype("float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD()
    seen = {}

    def refused(name: str, call: Any) -> None:
        before = [value.tobytes() for value in model.get_weights()]
        try:
            call()
        except memfit.MemfitError as error:
            seen[name] = str(error).splitlines()[0]
        assert before == [value.tobytes() for value in model.get_weights()]

    def mean(x: Any) -> Any:
        return ops.mean(model(x) ** 2)

    def make(function: Any, **options: Any) -> Any:
        return memfit.step(function, optimizer, model.trainable_variables, **options)

    refused("not a function", lambda: make("loss"))
    refused("no variables", lambda: memfit.step(mean, optimizer, []))
    refused("no optimizer", lambda: memfit.step(mean, "adam", model.trainable_variables))
    refused("no batch", make(mean))
    refused("one number", lambda: make(mean)(3.0))
    refused("rows differ", lambda: make(lambda x, y: ops.mean(model(x)))(x[:4], y[:3]))
    refused("size", lambda: make(mean, micro_batch_size=0))
    refused("output", lambda: make(lambda x: (mean(x), ops.max(x)), micro_batch_size=4)(x[:16]))
    refused("median", lambda: make(lambda x: ops.median(model(x)), micro_batch_size=4)(x[:16]))
    step = make(mean)
    refused("in a graph", tf.function(lambda: step(x), autograph=False))
    return seen


def test_what_cannot_be_guarded_is_refused_and_nothing_changes() -> None:
    seen = run_limited(_refusals, "2GiB")
    assert "expected a function of a batch, received str" in seen["not a function"]
    assert "there are no variables to train" in seen["no variables"]
    assert "expected a Keras optimizer, received str" in seen["no optimizer"]
    assert "a batch holds nothing" in seen["no batch"]
    assert "a single number" in seen["one number"]
    assert "different numbers of samples" in seen["rows differ"]
    assert "expected micro_batch_size" in seen["size"]
    assert (
        "not every output is a mean or a sum or a running result or a row for each sample" in seen["output"]
    )
    assert "neither the mean nor the sum" in seen["median"]
    assert "inside a tf.function" in seen["in a graph"]


def _run_out() -> dict[str, Any]:
    """A loop under pressure: the loss function is traced once, split as needed."""
    import keras
    import numpy as np
    from keras import layers, ops

    import memfit
    from guarding.faults import Pressure, nothing_is_foreseen
    from guarding.small_models import prepare

    nothing_is_foreseen()
    pressure = Pressure()
    prepare(floatx="float32", deterministic=True)
    model = keras.Sequential([
        keras.Input((96, 64)), layers.Dense(64, activation="tanh"), layers.Dense(64, activation="tanh"),
        layers.Dropout(0.2), layers.GlobalAveragePooling1D(), layers.Dense(1),
    ])  # fmt: skip
    x = np.random.default_rng(0).random((64, 96, 64), "float32")
    step = memfit.step(
        lambda x: ops.mean(model(x, training=True) ** 2), keras.optimizers.Adam(), model.trainable_variables
    )
    losses = [float(step(x))]
    pressure.leave(3 << 20)
    losses += [float(step(x)) for _ in range(2)]
    pressure.release()
    losses += [float(step(x)) for _ in range(3)]
    return {"losses": losses, "run": step.run.to_dict()}


def test_a_loop_goes_on_through_pressure() -> None:
    seen = run_limited(_run_out, "192MiB")
    sizes = [change["micro_batch_size"] for change in seen["run"]["micro_batches"]]
    assert seen["run"]["ooms"]
    assert seen["run"]["steps"] == 6
    assert (sizes[0], sizes[-1]) == (64, 64)
    assert min(sizes) < 64
    assert all(0 < loss < 10 for loss in seen["losses"])
