"""The time of an operation, roughly: arithmetic, bytes moved, and a fixed part, in seconds of one core."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable
from math import prod
from typing import Any

import tensorflow as tf

from memfit.core.records import Slowdown

_FLOPS_PER_SECOND = 8e10
_BYTES_PER_SECOND = 3e10
_SECONDS_PER_CALL = 5e-6
_SECONDS_TO_CONVOLVE, _SECONDS_TO_MULTIPLY = 3e-4, 1.5e-4  # however small: to lay out kernels, to share work
_SLOWER = {  # than arithmetic or memory alone would have them
    "Conv2DBackpropInput": 2.5, "Conv2DBackpropFilter": 2.5, "Conv3DBackpropInputV2": 2.5,
    "Conv3DBackpropFilterV2": 2.5, "DepthwiseConv2dNative": 8.0, "DepthwiseConv2dNativeBackpropInput": 8.0,
    "DepthwiseConv2dNativeBackpropFilter": 10.0, "BatchMatMulV2": 2.5, "Einsum": 2.5, "MaxPool": 3.0,
    "MaxPoolGrad": 20.0, "AvgPoolGrad": 4.0, "Transpose": 6.0, "Softmax": 5.0, "BiasAdd": 3.0,
    "BiasAddGrad": 4.0, "SelectV2": 3.0, "ConcatV2": 2.0, "Exp": 2.0, "Erfc": 4.0, "SquaredDifference": 3.0,
    "Mean": 2.0, "Tile": 7.0, "UnsortedSegmentSum": 10.0, "StatelessRandomUniformV2": 30.0,
    "_UnaryOpsComposition": 4.0,
}  # fmt: skip
FUSED = "_Fused"  # how TensorFlow names an operation that it has joined with what follows
_CONVOLVES = ("Conv2D", "Conv3D", "DepthwiseConv2d")
# Whether an operation that multiplies matrices sums over the rows of the left one instead of its columns.
_TRANSPOSED = {"MatMul": "transpose_a", "BatchMatMul": "adj_x", "BatchMatMulV2": "adj_x"}
_FREE = frozenset({
    "Const", "Identity", "Reshape", "ReadVariableOp", "NoOp", "Placeholder", "Shape", "Squeeze", "ExpandDims",
    "StopGradient", "VarHandleOp",
})  # fmt: skip


def cost_of(operation: Any) -> float:
    """Seconds that an operation takes; only ratios between operations mean something."""
    kind = _kind_of(operation)
    if kind in _FREE:
        return 0.0
    moved = sum(
        _count(tensor) * (tensor.dtype.size or 1) for tensor in (*operation.inputs, *operation.outputs)
    )
    worked = moved / _BYTES_PER_SECOND + _flops(operation) / _FLOPS_PER_SECOND
    return _seconds_to_begin(kind) + worked * _SLOWER.get(kind, 1.0)


def _seconds_to_begin(kind: str) -> float:
    if kind.startswith(_CONVOLVES):
        return _SECONDS_TO_CONVOLVE
    return _SECONDS_TO_MULTIPLY if kind in _TRANSPOSED or kind == "Einsum" else _SECONDS_PER_CALL


def _kind_of(operation: Any) -> str:
    """The kind of an operation, without what is fused to it."""
    kind: str = operation.type
    return kind.removeprefix(FUSED)


def _flops(operation: Any) -> float:
    """Multiplications and additions of what multiplies matrices."""
    kind = _kind_of(operation)
    if kind.startswith(_CONVOLVES):
        kernel, made = _kernel_and_output(operation)
        sizes = [size or 1 for size in kernel.shape]
        each = prod(sizes[:-2]) if kind.startswith("Depthwise") else prod(sizes[:-1])
        return 2.0 * float(_count(made) * each)
    if kind in _TRANSPOSED:
        left = operation.inputs[0].shape
        summed = -2 if operation.get_attr(_TRANSPOSED[kind]) else -1
        return 2.0 * _count(operation.outputs[0]) * ((left[summed] or 1) if left.rank else 1)
    if kind == "Einsum":
        return 2.0 * prod(_sizes_of_labels(operation).values())
    return 0.0


def _sizes_of_labels(operation: Any) -> dict[str, int]:
    """The size of each dimension that an Einsum names; those behind dots are left out."""
    named = operation.get_attr("equation").decode().partition("->")[0].split(",")
    return {
        label: size or 1
        for labels, tensor in zip(named, operation.inputs, strict=True)
        if tensor.shape.rank == len(labels)
        for label, size in zip(labels, tensor.shape, strict=True)
    }


def _kernel_and_output(operation: Any) -> tuple[Any, Any]:
    """The kernel of a convolution and what its forward pass makes, whichever of its three parts this is."""
    if "BackpropFilter" in operation.type:
        return operation.outputs[0], operation.inputs[2]
    if "BackpropInput" in operation.type:
        return operation.inputs[1], operation.inputs[2]
    return operation.inputs[1], operation.outputs[0]


def _count(tensor: Any) -> int:
    return int(prod(size or 1 for size in tensor.shape) if tensor.shape.rank is not None else 1)


_REPEATS = 5
_STEPS = 8  # to an octave: coarse, since a timing is noise beyond that


def time_16_bits(dtype: str) -> Slowdown:
    """The slowdown of a few small operations against float32, timed in a fraction of a second."""
    ratios = [_seconds(_run, dtype) / _seconds(_run, "float32") for _run in (_matmul, _convolution, _other)]
    return Slowdown(*(_rounded(ratio) for ratio in ratios))


def machine_key() -> str:
    """The digest of all that times depend on: processor, cores, devices and TensorFlow's version."""
    devices = [device.device_type for device in tf.config.list_logical_devices()]
    parts = (platform.machine(), platform.processor(), os.cpu_count(), devices, tf.__version__)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _matmul(dtype: str) -> Callable[[], Any]:
    numbers = tf.ones((256, 256), dtype)
    return lambda: tf.linalg.matmul(numbers, numbers)


def _convolution(dtype: str) -> Callable[[], Any]:
    images, kernel = tf.ones((4, 32, 32, 16), dtype), tf.ones((3, 3, 16, 16), dtype)
    return lambda: tf.nn.conv2d(images, kernel, 1, "SAME")


def _other(dtype: str) -> Callable[[], Any]:
    numbers = tf.ones((512, 512), dtype)
    return lambda: tf.nn.relu(numbers * numbers)


def _seconds(make: Callable[[str], Callable[[], Any]], dtype: str) -> float:
    run = make(dtype)
    run()
    found = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        run().numpy()
        found.append(time.perf_counter() - began)
    return min(found)


def _rounded(ratio: float) -> float:
    """To one of a few values, so that the same device gets the same answer."""
    return float(2 ** (round(_STEPS * math.log2(max(ratio, 1e-3))) / _STEPS))
