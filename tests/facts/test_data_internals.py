"""Every private name that looking into pipelines relies on: what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.data import internals

    def kinds(dataset: Any) -> list[str | None]:
        found = [internals.kind_of(type(dataset).__name__)]
        return found + [kind for one in internals.inputs_of(dataset) for kind in kinds(one)]

    def settings(dataset: Any) -> dict[str, int | None]:
        return internals.settings_of(dataset, internals.kind_of(type(dataset).__name__) or "")

    numbers = tf.data.Dataset.range(100)
    array = np.zeros((50, 8), "float32")
    seen: dict[str, Any] = {}
    seen["kinds"] = kinds(numbers.shuffle(7).batch(4).cache().prefetch(2).with_options(tf.data.Options()))
    seen["zip"] = kinds(tf.data.Dataset.zip(numbers, numbers.map(lambda x: x + 1)))
    old = tf.compat.v1.data.Dataset.range(5).shuffle(3)
    seen["unwrapped"] = kinds(internals.unwrapped(old))
    seen["settings"] = [
        settings(one)
        for one in (
            numbers.shuffle(7),
            numbers.prefetch(tf.data.AUTOTUNE),
            numbers.batch(4),
            numbers.batch(4, num_parallel_calls=3),
            numbers.padded_batch(4),
            numbers.window(9),
            numbers.map(lambda x: x, num_parallel_calls=6),
            numbers.interleave(tf.data.Dataset.range, cycle_length=5, block_length=2),
            numbers.interleave(tf.data.Dataset.range, cycle_length=5, num_parallel_calls=2),
            numbers.cache(),
            numbers.cache("a/file"),
        )
    ]
    of_keys = {"key_func": lambda x: x % 2, "reduce_func": lambda key, window: window.batch(3)}
    seen["group"] = internals.window_size_of(numbers.group_by_window(**of_keys, window_size=3))
    sized = numbers.group_by_window(**of_keys, window_size_func=lambda key: key + 1)
    seen["group by key"] = internals.window_size_of(sized)
    slices = tf.data.Dataset.from_tensor_slices(array)
    seen["tensors"] = [tuple(tensor.shape) for tensor in internals.tensors_of(slices)]

    def inner(x: Any) -> Any:
        rows = tf.data.Dataset.from_tensor_slices(array).shuffle(11)
        return rows.map(lambda row: row + tf.gather(array, 0), num_parallel_calls=2).cache("b").prefetch(3)

    (function,) = internals.functions_of(numbers.flat_map(inner))
    graphs = list(internals.graphs_in(function.graph))
    operations = [operation for graph in graphs for operation in graph.get_operations()]
    seen["graphs"] = len(graphs), internals.hides_functions(function.graph)
    seen["constants"] = sum(
        tuple(one.outputs[0].shape) == (50, 8) for one in operations if one.type == "Const"
    )
    found = {internals.kind_of(one.type): one for one in operations if internals.kind_of(one.type)}
    seen["operations"] = {
        kind: internals.settings_of_operation(one, kind or "") for kind, one in found.items()
    }
    seen["specs"] = str(internals.specs_of_operation(found["Shuffle"]))
    seen["stateful"] = [internals.is_stateful(found["Shuffle"]), internals.is_stateful(found["ParallelMap"])]
    (called,) = internals.functions_of(numbers.map(lambda x: (x, x + 1)))
    seen["called"] = [int(tensor) for tensor in called(tf.constant(4, tf.int64))]

    element = {"a": tf.ragged.constant([[1, 2], [3]]), "b": tf.constant(5)}
    spec = tf.data.Dataset.from_tensors(element).element_spec
    tensors = internals.as_tensors(spec, element)
    again = internals.as_element(spec, tensors)
    seen["element"] = [len(tensors), again["a"].to_list(), int(again["b"])]
    return seen


def test_each_does_what_memfit_needs() -> None:
    seen = run_limited(_use_them, None)
    # Without them nothing is known of a pipeline but that it is one.
    assert seen["kinds"] == ["Options", "Prefetch", "Cache", "Batch", "Shuffle", "Range"]
    assert seen["zip"] == ["Zip", "Range", "Map", "Range"]
    assert seen["unwrapped"] == ["Shuffle", "Range"]
    # Without these, how many elements a buffer holds.
    assert seen["settings"] == [
        {"size": 7},
        {"size": -1},
        {"size": 4},
        {"size": 4, "calls": 3},
        {"size": 4},
        {"size": 9},
        {"calls": 6},
        {"cycle": 5, "block": 2},
        {"cycle": 5, "block": 1, "buffer": -1, "ahead": -1},
        {"file": 0},
        {"file": 6},
    ]
    assert (seen["group"], seen["group by key"]) == (3, None)
    # Without these, arrays in pipelines, and in functions, where they cost most.
    assert seen["tensors"] == [[50, 8]]
    assert seen["graphs"] == [2, False]
    assert seen["constants"] == 2
    # Without these, what a pipeline inside of a function holds.
    assert seen["operations"] == {
        "TensorSlice": {},
        "Shuffle": {"size": 11},
        "ParallelMap": {"calls": 2},
        "Cache": {"file": 1},
        "Prefetch": {"size": 3},
    }
    assert seen["specs"] == "[TensorSpec(shape=(8,), dtype=tf.float32, name=None)]"
    # Without these, elements could not be made by hand, or their making could have side effects.
    assert seen["stateful"] == [True, False]
    assert seen["called"] == [4, 5]
    assert seen["element"] == [2, [[1, 2], [3]], 5]
