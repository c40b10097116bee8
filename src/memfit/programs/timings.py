"""Operations timed on this device, for what arithmetic and bytes do not say: lower precision."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memfit.records import Slowdown

_REPEATS = 5
_STEPS = 8  # to an octave: coarse, since a timing is noise beyond that


def time_16_bits(dtype: str) -> Slowdown:
    """How much longer a few small operations take than in float32; a fraction of a second."""
    ratios = [_seconds(_run, dtype) / _seconds(_run, "float32") for _run in (_matmul, _convolution, _other)]
    return Slowdown(*(_rounded(ratio) for ratio in ratios))


def machine_key() -> str:
    """What times depend on."""
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
