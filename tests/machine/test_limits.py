"""Limits and readings against the real allocator, many checks in each process."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from memfit.core.errors import InvalidSize, LargerThanMachine
from memfit.machine import limit

pytestmark = pytest.mark.real

MIB = 2**20


@pytest.mark.parametrize("size", ["8gigs", 0, -1, None, "1023KiB"])
def test_nonsense_is_refused_before_tensorflow_is_touched(size: Any) -> None:
    with pytest.raises(InvalidSize):
        limit(size)


def _limit_before_the_runtime_starts() -> dict[str, Any]:
    import os

    import tensorflow as tf

    import memfit
    from memfit.machine import describe_allocator, limit_in_force, runtime_started

    seen: dict[str, Any] = {"started_by_import": runtime_started()}
    tf.config.list_physical_devices()
    seen["started_by_listing"] = runtime_started()
    seen["first"] = memfit.limit("300MB")
    seen["replaced"] = memfit.limit("200MB")
    try:
        memfit.limit("1000TiB")
    except LargerThanMachine as error:
        seen["too_large"] = str(error)
    seen["kept"] = limit_in_force()
    seen["growth"] = memfit.limit(growth=True)
    seen["started"] = runtime_started()
    tf.constant(1.0)
    seen["started_by_op"] = runtime_started()
    seen["allocator"] = describe_allocator()
    seen["same_again"] = memfit.limit("200MB")
    try:
        memfit.limit("400MB")
    except memfit.errors.RuntimeStarted as error:
        seen["late"] = str(error)
    seen["environment"] = os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"]
    return seen


def test_a_limit_can_be_set_until_the_runtime_starts() -> None:
    seen = run_limited(_limit_before_the_runtime_starts, None)
    assert seen["started_by_import"] is seen["started_by_listing"] is seen["started"] is False
    assert seen["started_by_op"] is True
    assert seen["first"] == 286 * MIB  # 300 MB rounded down to whole MiB
    assert seen["replaced"] == seen["kept"] == seen["growth"] == seen["same_again"] == 190 * MIB
    assert "larger than the memory of" in seen["too_large"]
    assert seen["allocator"] == "BFC on the CPU, limit 190 MiB"
    assert "Limit in force: 190 MiB; requested: 381 MiB" in seen["late"]
    assert 'Try: memfit.limit("381MiB")  # first of all, in a new process' in seen["late"]
    assert seen["environment"] == "190"


def _too_late() -> dict[str, Any]:
    import os

    import tensorflow as tf

    import memfit
    from memfit.machine import describe_allocator, device_memory, limit_in_force, pool_bytes

    tf.constant(1.0)
    seen: dict[str, Any] = {}
    try:
        memfit.limit("400MB")
    except memfit.errors.RuntimeStarted as error:
        seen["late"] = str(error)
    seen["untouched"] = "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ
    try:
        device_memory()
    except memfit.errors.NotMeasurable as error:
        seen["not_measurable"] = str(error)
    # Someone sets the variables too late: they are not in force, whatever they say.
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
    seen["in_force"] = limit_in_force()
    seen["allocator"] = describe_allocator()
    seen["pool"] = pool_bytes("CPU:0")
    seen["no_such_pool"] = pool_bytes("GPU:0")
    return seen


def test_after_the_runtime_started_a_clear_error_and_nothing_changed() -> None:
    seen = run_limited(_too_late, None)
    assert seen["late"].startswith("TensorFlow's runtime has already started")
    assert "Limit in force: none; requested: 381 MiB" in seen["late"]
    assert seen["untouched"] is True
    assert "keeps no statistics" in seen["not_measurable"]
    assert seen["in_force"] is None
    assert seen["allocator"] == "TensorFlow's plain CPU allocator: no limit and no statistics"
    assert seen["pool"] == 256 * MIB  # the constant that TensorFlow reports for every CPU
    assert seen["no_such_pool"] is None


def _unlimited() -> str:
    import tensorflow as tf

    from memfit.core.errors import NotMeasurable
    from memfit.machine import device_memory

    held = tf.ones((1024, 1024))
    try:
        return f"{device_memory()} for {len(held)} rows"
    except NotMeasurable as error:
        return str(error)


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_without_a_limit_no_figure_is_made_up(onednn: str) -> None:
    """With oneDNN TensorFlow has figures, which leave out most tensors."""
    said = run_limited(_unlimited, None, environment={"TF_ENABLE_ONEDNN_OPTS": onednn})
    assert "keeps no statistics" in said


def _read_and_measure() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.machine import device_memory, limit_in_force, measure_peak, process_bytes, reset_peak

    info = tf.config.experimental.get_memory_info
    pairs = [(device_memory(), info("CPU:0"))]
    held = tf.ones((1024, 1024))
    pairs.append((device_memory("CPU:0"), info("CPU:0")))
    with measure_peak() as outer:
        first = tf.ones((2048, 1024))
        del first
        with measure_peak() as inner:
            second = tf.ones((1024, 1024))
            del second
    pairs.append((device_memory(), info("CPU:0")))
    reset_peak()
    after_reset = device_memory()
    del held
    return {
        "pairs": [
            [memory.current_bytes, memory.peak_bytes, raw["current"], raw["peak"]] for memory, raw in pairs
        ],
        "outer": [outer.base_bytes, outer.over_base_bytes],
        "inner": [inner.base_bytes, inner.over_base_bytes],
        "after_reset": [after_reset.current_bytes, after_reset.peak_bytes],
        "limit": limit_in_force(),
        "process": process_bytes(),
    }


def test_readings_are_tensorflows_to_the_byte() -> None:
    seen = run_limited(_read_and_measure, "100MiB")
    for current, peak, raw_current, raw_peak in seen["pairs"]:
        assert (current, peak) == (raw_current, raw_peak)
    assert seen["pairs"][1][0] >= 4 * MIB
    assert seen["limit"] == 100 * MIB
    assert 50 * MIB < seen["process"] < 4096 * MIB
    current, peak = seen["after_reset"]
    assert current == peak
    # Blocks are measured over their base, and they nest.
    assert 4 * MIB <= seen["outer"][0] < 8.5 * MIB
    # BFC may hand out a chunk of up to twice the request.
    assert 8 * MIB <= seen["outer"][1] <= 17 * MIB
    assert 4 * MIB <= seen["inner"][1] <= 8.5 * MIB


def _resnet_runs_out() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.machine import device_memory, is_oom, read_oom

    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(weights=None, input_shape=(128, 128, 3), classes=10)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    try:
        model.train_on_batch(np.zeros((32, 128, 128, 3), "float32"), np.zeros(32, "int64"))
    except tf.errors.ResourceExhaustedError as error:
        oom = read_oom(error)
        memory, raw = device_memory(), tf.config.experimental.get_memory_info("CPU:0")
        return {
            "is_oom": is_oom(error),
            "oom": oom.to_dict(),
            "memory": [memory.current_bytes, memory.peak_bytes],
            "raw": [raw["current"], raw["peak"]],
        }
    return {"is_oom": False}


def test_resnet50_in_600_megabytes_runs_out_for_real() -> None:
    seen = run_limited(_resnet_runs_out, "600MB")
    assert seen["is_oom"] is True
    assert seen["memory"] == seen["raw"]
    assert seen["memory"][1] <= 600 * 10**6
    assert seen["oom"]["device"] == "CPU:0"
    assert seen["oom"]["shape"][0] == 32
    assert seen["oom"]["requested_bytes"] > 0
