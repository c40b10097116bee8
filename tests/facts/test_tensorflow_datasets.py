"""Facts behind `memfit.private.tensorflow.datasets`: what breaks if a private name of TensorFlow goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.private.tensorflow.datasets import (
        as_element,
        as_it_is,
        as_tensors,
        batch_size_of,
        functions_of,
        graphs_in,
        hides_functions,
        input_datasets,
        is_stateful,
        kind_of,
        runs_python,
        settings_of,
        settings_of_operation,
        specs_of_operation,
        tensors_of,
        unwrapped,
        window_size_of,
    )

    def kinds(dataset: Any) -> list[str | None]:
        found = [kind_of(type(dataset).__name__)]
        return found + [kind for one in input_datasets(dataset) for kind in kinds(one)]

    def settings(dataset: Any) -> dict[str, int | None]:
        return settings_of(dataset, kind_of(type(dataset).__name__) or "")

    numbers = tf.data.Dataset.range(100)
    array = np.zeros((50, 8), "float32")
    seen: dict[str, Any] = {}
    seen["kinds"] = kinds(numbers.shuffle(7).batch(4).cache().prefetch(2).with_options(tf.data.Options()))
    seen["zip"] = kinds(tf.data.Dataset.zip(numbers, numbers.map(lambda x: x + 1)))
    spec = tf.TensorSpec((), tf.int64)
    drawn = tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=spec).shuffle(2).batch(2)
    by_numpy = numbers.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)).prefetch(1)
    seen["runs python"] = [runs_python(one) for one in (drawn, by_numpy, numbers.map(lambda x: x).batch(2))]
    left_alone = as_it_is(numbers.batch(4)).options()
    chosen = left_alone.experimental_optimization.apply_default_optimizations, left_alone.autotune.enabled
    seen["as it is"] = [*chosen, [int(one) for one in as_it_is(numbers.take(2))]]
    old = tf.compat.v1.data.Dataset.range(5).shuffle(3)
    seen["unwrapped"] = kinds(unwrapped(old))
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
    seen["group"] = window_size_of(numbers.group_by_window(**of_keys, window_size=3))
    sized = numbers.group_by_window(**of_keys, window_size_func=lambda key: key + 1)
    seen["group by key"] = window_size_of(sized)
    slices = tf.data.Dataset.from_tensor_slices(array)
    seen["tensors"] = [tuple(tensor.shape) for tensor in tensors_of(slices)]

    def inner(x: Any) -> Any:
        rows = tf.data.Dataset.from_tensor_slices(array).shuffle(11)
        return rows.map(lambda row: row + tf.gather(array, 0), num_parallel_calls=2).cache("b").prefetch(3)

    (function,) = functions_of(numbers.flat_map(inner))
    graphs = list(graphs_in(function.graph))
    operations = [operation for graph in graphs for operation in graph.get_operations()]
    seen["graphs"] = len(graphs), hides_functions(function.graph)
    seen["constants"] = sum(
        tuple(one.outputs[0].shape) == (50, 8) for one in operations if one.type == "Const"
    )
    found = {kind_of(one.type): one for one in operations if kind_of(one.type)}
    seen["operations"] = {kind: settings_of_operation(one, kind or "") for kind, one in found.items()}
    seen["specs"] = str(specs_of_operation(found["Shuffle"]))
    seen["stateful"] = [is_stateful(found["Shuffle"]), is_stateful(found["ParallelMap"])]
    (called,) = functions_of(numbers.map(lambda x: (x, x + 1)))
    seen["called"] = [int(tensor) for tensor in called(tf.constant(4, tf.int64))]

    element = {"a": tf.ragged.constant([[1, 2], [3]]), "b": tf.constant(5)}
    spec = tf.data.Dataset.from_tensors(element).element_spec
    tensors = as_tensors(spec, element)
    again = as_element(spec, tensors)
    seen["element"] = [len(tensors), again["a"].to_list(), int(again["b"])]
    pipelines = (
        numbers.batch(4).map(lambda x: x).prefetch(1),
        numbers.batch(4, num_parallel_calls=2),
        numbers,
    )
    seen["batches"] = [batch_size_of(dataset) for dataset in pipelines]
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-datasets", lambda: run_limited(_use_them, None))


def test_transformations_are_named(seen: Any) -> None:
    """`_inputs`, `_dataset`, names of classes: without them all of a pipeline is unknown."""
    assert seen["kinds"] == ["Options", "Prefetch", "Cache", "Batch", "Shuffle", "Range"]
    assert seen["zip"] == ["Zip", "Range", "Map", "Range"]
    assert seen["unwrapped"] == ["Shuffle", "Range"]


def test_transformations_have_settings(seen: Any) -> None:
    """`_buffer_size`, `_batch_size` and their kin: without them the elements in a buffer are unknown."""
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


def test_groups_have_sizes(seen: Any) -> None:
    """`_window_size_func`: without it the elements that `group_by_window` holds are unknown."""
    assert (seen["group"], seen["group by key"]) == (3, None)


def test_arrays_in_pipelines_are_found(seen: Any) -> None:
    """`_tensors`, `_functions`, `_cached_graph`: without them arrays inside functions are missed."""
    assert seen["tensors"] == [[50, 8]]
    assert seen["graphs"] == [2, False]
    assert seen["constants"] == 2


def test_pipelines_inside_functions_are_read(seen: Any) -> None:
    """Inputs and attributes of operations: without them a pipeline inside a function is unknown."""
    assert seen["operations"] == {
        "TensorSlice": {},
        "Shuffle": {"size": 11},
        "ParallelMap": {"calls": 2},
        "Cache": {"file": 1},
        "Prefetch": {"size": 3},
    }
    assert seen["specs"] == "[TensorSpec(shape=(8,), dtype=tf.float32, name=None)]"


def test_functions_with_side_effects_are_known(seen: Any) -> None:
    """`op_def.is_stateful`: without it, making an element by hand could have side effects."""
    assert seen["stateful"] == [True, False]


def test_pipelines_that_run_python_are_known(seen: Any) -> None:
    """`function`, `_functions`: without them a generator's draws would be put back while it goes on."""
    assert seen["runs python"] == [True, True, False]


def test_pipelines_are_left_as_they_are(seen: Any) -> None:
    """`experimental_optimization`: without it TensorFlow copies what a pipeline reads from into the pool."""
    assert seen["as it is"] == [False, False, [0, 1]]


def test_elements_are_made_by_hand(seen: Any) -> None:
    """`function`, `to_tensor_list`, `from_tensor_list`: without them no element can be made by hand."""
    assert seen["called"] == [4, 5]
    assert seen["element"] == [2, [[1, 2], [3]], 5]


def test_a_dataset_knows_its_batch_size(seen: Any) -> None:
    """`_batch_size`: without it a dataset whose last batch is smaller cannot be planned for."""
    assert seen["batches"] == [4, 4, None]
