"""What the code relies on in TensorFlow's allocator: a TensorFlow that changes it is noticed here."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

MIB = 2**20


def _facts() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.guarding.step.batches import aligned_copy, aligned_take, as_tensor
    from memfit.machine import device_memory, measure_peak

    facts: dict[str, Any] = {}

    def current() -> int:
        return device_memory().current_bytes

    # The limit is hard, and what is below it can be had.
    for size in (90, 110):
        try:
            tf.fill((size * MIB // 4,), 0.5)
            facts[f"fill {size}"] = "fits"
        except tf.errors.ResourceExhaustedError:
            facts[f"fill {size}"] = "runs out"

    before = current()
    small = tf.fill((1,), 1.0)
    facts["smallest"] = current() - before
    del small

    # TensorFlow copies an array into the pool; handed over by DLPack it is used in place.
    random = np.random.default_rng(0)
    block = np.zeros(8 * MIB + 64, np.uint8)
    odd = block[-block.ctypes.data % 64 + 16 :][: 8 * MIB - 64]
    before = current()
    copied = tf.convert_to_tensor(aligned_copy(odd))
    facts["copied"] = current() - before
    del copied
    before = current()
    in_place = as_tensor(odd)
    facts["in place"] = current() - before
    every_type = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint16", "bool"]
    facts["types"] = [as_tensor(np.ones((2, 3), name)).dtype.name for name in every_type] == every_type
    facts["scalar"] = int(as_tensor(np.array(7, np.int32)))
    facts["empty"] = as_tensor(np.ones((0, 3))).shape.as_list()
    facts["strided"] = as_tensor(np.arange(6).reshape(2, 3).T).numpy().tolist()
    rows = random.random((64, 3, 5))
    taken = aligned_take(rows, np.array([5, 2, 63]), "float32")
    facts["taken"] = bool(np.array_equal(tf.convert_to_tensor(taken), rows[[5, 2, 63]].astype("float32")))
    facts["taken aligned"] = taken.ctypes.data % 64
    del in_place

    # A reference to a variable's value costs nothing until the variable changes, and leads back for nothing.
    variable = tf.Variable(tf.random.stateless_uniform((2 * MIB,), (1, 2)))
    first = float(variable[0])
    refer = tf.function(lambda: [variable.read_value()])
    refer()
    before = current()
    (reference,) = refer()
    facts["reference"] = current() - before
    variable.assign_add(tf.ones_like(variable))
    facts["after a change"] = current() - before
    with measure_peak() as measured:
        variable.assign(reference)
    facts["way back"] = measured.over_base_bytes
    facts["restored"] = float(variable[0]) == first
    return facts


def test_the_facts_that_guarded_training_stands_on() -> None:
    facts = run_limited(_facts, "100MiB")
    assert facts["fill 90"] == "fits"
    assert facts["fill 110"] == "runs out"
    assert facts["smallest"] == 256
    assert facts["copied"] >= 8 * MIB - 64
    assert facts["in place"] == 0
    assert facts["types"] is True
    assert facts["scalar"] == 7
    assert facts["empty"] == [0, 3]
    assert facts["strided"] == [[0, 3], [1, 4], [2, 5]]
    assert facts["taken"] is True
    assert facts["taken aligned"] == 0
    assert facts["reference"] == 0
    assert facts["after a change"] >= 8 * MIB
    assert facts["way back"] == 0
    assert facts["restored"] is True


def _fit_on_arrays(guarded: bool) -> int:
    import keras
    import numpy as np

    import memfit

    x = np.ones((2048, 4096), "float32")
    model = keras.Sequential([keras.Input((4096,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    if guarded:
        memfit.fit(model, x, x[:, :1], batch_size=64, verbose=0)
    else:
        model.fit(x, x[:, :1], batch_size=64, verbose=0)
    return memfit.devices.device_memory().peak_bytes


def test_keras_copies_arrays_onto_the_device_and_memfit_does_not() -> None:
    array_bytes = 2048 * 4096 * 4
    assert run_limited(_fit_on_arrays, "512MiB", guarded=False) > array_bytes
    assert run_limited(_fit_on_arrays, "512MiB", guarded=True) < array_bytes / 4
