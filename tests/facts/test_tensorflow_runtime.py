"""Facts behind `memfit.private.tensorflow.runtime`: what breaks if a private name of TensorFlow goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.private.tensorflow.runtime import (
        forget_kernels,
        hand_over,
        has_global_seed,
        has_started,
        operation_seeds,
        pool_bytes,
        uses_onednn,
    )

    seen: dict[str, Any] = {"started before": has_started()}
    seen["pool"] = [isinstance(pool_bytes("CPU:0"), int), pool_bytes("CPU:99")]
    seen["started after"] = has_started()
    seen["onednn"] = uses_onednn()

    seen["no seed"] = has_global_seed()
    tf.random.set_seed(5)
    seen["a seed"] = has_global_seed()
    state = operation_seeds().getstate()
    first = tf.compat.v1.get_seed(None)
    operation_seeds().setstate(state)
    seen["drawn again"] = tf.compat.v1.get_seed(None) == first
    forget_kernels()
    seen["runs after"] = float(tf.reduce_sum(tf.ones((2,))))
    handed_over: list[Any] = []
    array = np.ones((1 << 10,), "uint8")
    hand_over(lambda value, _: handed_over.append(type(value).__name__))
    for make in (tf.constant, tf.convert_to_tensor, tf.Variable, tf.data.Dataset.from_tensor_slices):
        make(array)
        seen["handed_over"] = [*seen.get("handed_over", []), "ndarray" in handed_over]
        handed_over.clear()
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("tensorflow-runtime", lambda: run_limited(_use_them, None))


def test_the_start_of_the_runtime_is_noticed(seen: Any) -> None:
    """`_initialized`: without it a limit is set after the runtime has started, and has no effect."""
    assert not seen["started before"]
    assert seen["started after"]


def test_devices_report_their_pool(seen: Any) -> None:
    """`TF_DeviceListMemoryBytes`: without it the limit of a GPU is unknown where TensorFlow chose it."""
    assert seen["pool"] == [True, None]


def test_onednn_is_noticed(seen: Any) -> None:
    """`IsMklEnabled`: without it formulas are used for kernels of oneDNN, for which they do not hold."""
    assert seen["onednn"] is False  # the tests switch it off


def test_seeds_of_operations_are_drawn_again(seen: Any) -> None:
    """`context._rng`, `global_seed`: without them draws under a global seed differ after resuming."""
    assert seen["no seed"] is False
    assert seen["a seed"] is True
    assert seen["drawn again"] is True


def test_kernels_are_forgotten(seen: Any) -> None:
    """`clear_kernel_cache`: without it kernels of a released model keep their functions."""
    assert seen["runs after"] == 2.0


def test_all_arrays_that_become_tensors_can_be_handed_over(seen: Any) -> None:
    """`convert_to_eager_tensor`: without it arrays larger than the pool end the process."""
    assert seen["handed_over"] == [True, True, True, True]
