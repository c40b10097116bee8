"""Figures that lint tells, where they were measured for it: sums of many terms, and persistent tapes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

MIB = 2**20


def _sums() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.machine import device_memory, measure_peak

    x, weights = tf.random.normal((1024, 1024)), tf.random.normal((16,))

    def terms() -> list[Any]:
        return [tf.tanh(x * weights[index]) for index in range(16)]

    def in_graph() -> Any:
        total = tf.zeros_like(x)
        for index in tf.range(16):
            total += tf.tanh(x * weights[index])
        return total

    ways = {
        "stack": lambda: tf.reduce_sum(tf.stack(terms()), axis=0),
        "add_n": lambda: tf.add_n(terms()),
        "python": lambda: sum(terms(), start=tf.zeros_like(x)),
        "graph": in_graph,
    }
    peaks = {}
    for name, way in ways.items():
        function = tf.function(way)
        function()
        before = device_memory().current_bytes
        seen = []
        for _ in range(5):  # rounds of a loop overlap differently each time
            with measure_peak() as peak:
                function()
            seen.append((peak.peak_bytes - before) / MIB)
        peaks[name] = min(seen)
    return peaks


def test_a_stack_takes_twice_as_much_as_its_terms_and_a_loop_of_the_graph_least() -> None:
    peaks = run_limited(_sums, "2GiB")
    assert 100 <= peaks["stack"] <= 150
    assert 50 <= peaks["add_n"] <= 80
    assert 50 <= peaks["python"] <= 80
    assert peaks["graph"] <= 30


def _tapes() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from memfit.machine import device_memory

    layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]
    model, batch = keras.Sequential([keras.Input((64, 64, 3)), *layers]), tf.random.normal((32, 64, 64, 3))
    held = {}
    for name in ("plain", "plain", "persistent", "deleted"):  # the first one warms up
        before = device_memory().current_bytes
        with tf.GradientTape(persistent=name != "plain") as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        if name == "deleted":
            del tape
        held[name] = (device_memory().current_bytes - before) / MIB
        tape = None
        del loss, gradients
    return held


def test_a_persistent_tape_keeps_activations_until_it_goes() -> None:
    held = run_limited(_tapes, "2GiB")
    assert 50 <= held["persistent"] <= 62
    assert held["plain"] < 1
    assert held["deleted"] < 1
