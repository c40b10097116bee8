"""`memfit.protect`: the same results, from the same calls, on the same model."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.test_fit import _arrays, _dense
from limited import run_limited

pytestmark = pytest.mark.real


def _use(model: Any) -> dict[str, Any]:
    import tensorflow as tf

    x, y, w = _arrays()
    used: dict[str, Any] = {
        "fit": model.fit(x, y, 16, 2, verbose=0, validation_data=(x[:9], y[:9]), validation_freq=2).history,
        "evaluate": model.evaluate(x, y, verbose=0, batch_size=16, sample_weight=w),
        "predict": model.predict(x, verbose=0, batch_size=16),
        "train_on_batch": model.train_on_batch(x[:16], y[:16]),
        "test_on_batch": model.test_on_batch(x[:16], y[:16], return_dict=True),
        "predict_on_batch": model.predict_on_batch(x[:7]),
    }
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    used["compiled again"] = model.fit(batches, verbose=0, shuffle=False).history
    return used


def _compare(size: int | None) -> dict[str, Any]:
    import keras
    import numpy as np

    import memfit
    from guarding.small_models import difference, prepare, variables

    prepare(floatx="float64", deterministic=True)
    plain, ours = _dense(), _dense()
    keras.utils.set_random_seed(1)
    expected = _use(plain)
    keras.utils.set_random_seed(1)
    before = {name: value for name, value in vars(ours).items() if callable(value)}
    with memfit.protect(ours, micro_batch_size=size) as protection:
        received = _use(ours)
    after = {name: value for name, value in vars(ours).items() if callable(value)}
    differences = {
        name: max(
            float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float))))
            for a, b in zip(keras.tree.flatten(received[name]), keras.tree.flatten(values), strict=True)
        )
        for name, values in expected.items()
    }
    return {
        "differences": differences,
        "types": all(type(received[name]) is type(expected[name]) for name in expected),
        "variables": difference(variables(plain), variables(ours)),
        "left": sorted(set(after) - set(before)),
        "steps": protection.run.steps,
        "size": protection.run.micro_batch_size,
        "stale": ours.train_function is not None,
    }


@pytest.mark.parametrize("size", [None, 5])
def test_every_call_gives_what_it_gives_unprotected(size: int | None) -> None:
    seen = run_limited(_compare, "2GiB", size=size)
    assert max(seen["differences"].values()) <= (0.0 if size is None else 1e-12), seen["differences"]
    assert seen["variables"] <= (0.0 if size is None else 1e-12)
    assert seen["types"]
    assert seen["left"] == []
    assert seen["steps"] == 4 * 2 + 1 + 4
    assert seen["stale"] is False, "a function of before `compile` would train with the old optimizer"


def _predict_much() -> dict[str, Any]:
    """Outputs of 96 MiB from a pool of 64."""
    import keras
    import numpy as np

    import memfit

    inputs = keras.Input((8,))
    wide, total = keras.layers.Dense(4096), keras.layers.Dense(1)
    model = keras.Model(inputs, {"wide": wide(inputs), "sum": total(inputs)})
    x = np.random.default_rng(0).random((6144, 8), "float32")
    with memfit.protect(model):
        outputs = model.predict(x, batch_size=512, verbose=0)
    kernel, bias = wide.get_weights()
    expected = x[:3] @ kernel + bias
    return {
        "shapes": {name: list(value.shape) for name, value in outputs.items()},
        "close": bool(np.allclose(outputs["wide"][:3], expected, atol=1e-5)),
        "peak": memfit.devices.device_memory().peak_bytes,
    }


def test_predictions_leave_the_device_as_they_come() -> None:
    seen = run_limited(_predict_much, "64MiB")
    assert seen["shapes"] == {"wide": [6144, 4096], "sum": [6144, 1]}
    assert seen["close"]
    assert seen["peak"] < 64 * 2**20


def _data_in() -> dict[str, float]:
    """pandas, tensors and dictionaries of arrays: the order of samples is Keras' own."""
    import keras
    import pandas as pd
    import tensorflow as tf

    import memfit
    from guarding.small_models import difference, prepare, variables

    prepare(floatx="float64", deterministic=True)
    x, y, w = _arrays()
    frame = pd.DataFrame(x, columns=list("abcdef"))
    cases: dict[str, dict[str, Any]] = {
        "frame": {"x": frame, "y": pd.Series(y)},
        "frame, weighed": {"x": frame, "y": pd.Series(y), "sample_weight": pd.Series(w)},
        "tensors": {"x": tf.constant(x), "y": tf.constant(y)},
        "split": {"x": x, "y": y, "validation_split": 0.2},
        "weights and validation": {
            "x": x,
            "y": y,
            "sample_weight": w,
            "validation_data": (x[:9], y[:9], w[:9]),
        },
    }
    seen = {}
    for name, data in cases.items():
        plain, ours = _dense(), _dense()
        keras.utils.set_random_seed(1)
        plain.fit(**data, batch_size=16, epochs=2, verbose=0)
        keras.utils.set_random_seed(1)
        memfit.fit(ours, **data, batch_size=16, epochs=2, verbose=0)
        seen[name] = difference(variables(plain), variables(ours))
    return seen


def test_whatever_holds_the_data_the_samples_come_in_keras_order() -> None:
    assert set(run_limited(_data_in, "2GiB").values()) == {0.0}
