"""Facts behind `memfit.private.tensorflow.eager_tensors`: what breaks if a private name goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.private.tensorflow import function_graphs
    from memfit.private.tensorflow.eager_tensors import (
        EagerTensor,
        bytes_of,
        each_array,
        is_dataset_of_arrays,
    )
    from memfit.private.tensorflow.function_graphs import graph_in_force

    seen: dict[str, Any] = {}
    noted: list[tuple[int, Any, bool]] = []

    def around(array: Any, call: Any) -> Any:
        stack = [(one.filename, one.name) for one in function_graphs.stack()]
        noted.append((array.nbytes, stack, graph_in_force() is not None))
        return call()

    large = np.ones((1 << 20,), "uint8")
    with each_array(1 << 20, around):
        tf.data.Dataset.from_tensor_slices(large)
        tf.function(lambda: tf.constant(large)[0]).get_concrete_function()
        tf.constant(large[:-1])
    seen["arrays"] = [
        [bytes_, any(is_dataset_of_arrays(*one) for one in stack), in_graph]
        for bytes_, stack, in_graph in noted
    ]
    seen["bytes"] = [bytes_of(tf.ones((3, 2))), bytes_of(tf.constant(["text"]))]
    seen["eager"] = [isinstance(thing, EagerTensor) for thing in (tf.ones(1), tf.Variable(1.0))]
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-eager-tensors", lambda: run_limited(_use_them, None))


def test_arrays_are_noticed_when_they_become_tensors(seen: Any) -> None:
    """`convert_to_eager_tensor`, `make_tensor_proto`: without them arrays are missed."""
    assert seen["arrays"][0] == [1 << 20, True, False]
    assert [1 << 20, False, True] in seen["arrays"]
    assert all(array[0] == 1 << 20 for array in seen["arrays"]), "a smaller array was handed over"


def test_tensors_have_bytes(seen: Any) -> None:
    """`_num_elements`: without it tensors are counted and not weighed."""
    assert seen["bytes"] == [24, 0]


def test_eager_tensors_are_known(seen: Any) -> None:
    """`EagerTensor`: without it a tensor with values cannot be told from one in a graph."""
    assert seen["eager"] == [True, False]
