"""Single kernels, really run on made-up values: what they need while they run, as TensorFlow counts it.

All of this happens in a process of its own, which knows a kernel only as plain data: neither the user's code
nor the weights are there.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.devices.hosts import no_more_than_there_is
from memfit.programs import internals
from memfit.records import Kernel, KernelInput

_RUNS = 2  # the first finds algorithms and keeps what it found


def measure(
    kernels: Sequence[Mapping[str, Any]],
    threads: int,
    seconds: float,
    emit: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run one kernel after the other, until the time is over, and tell the scratch of each that runs."""
    ends = time.monotonic() + seconds
    with no_more_than_there_is():
        for number, kernel in enumerate(kernels):
            if time.monotonic() > ends:
                return
            with suppress(Exception):  # whatever a kernel says to made-up values
                size = _scratch_bytes(Kernel.from_dict(kernel), threads)
                emit({"number": number, "scratch_bytes": size})


def _scratch_bytes(kernel: Kernel, threads: int) -> int:
    """What a kernel allocates besides its outputs, at most at a time."""
    node = tf.compat.v1.NodeDef.FromString(base64.b64decode(kernel.node))
    graph_def = tf.compat.v1.GraphDef(node=[node])
    values: dict[Any, Any] = {}
    with tf.Graph().as_default() as graph:
        given = [_tensor(one, values) for one in kernel.inputs]
        mapped = {f"input{place}:0": tensor for place, tensor in enumerate(given)}
        tf.import_graph_def(graph_def, input_map=mapped, name="")
    return internals.scratch_of_run(graph, node.name, values, threads=threads, runs=_RUNS)


def _tensor(given: KernelInput, values: dict[Any, Any]) -> Any:
    """What a kernel is given; what the graph did not say is made up and goes into `values`."""
    dtype = tf.as_dtype(given.dtype)
    if given.value is not None:
        known = np.asarray(given.value).reshape(given.shape).astype(dtype.as_numpy_dtype)
        return tf.constant(known, dtype)
    tensor = tf.compat.v1.placeholder(dtype, given.shape)
    whole = not (dtype.is_floating or dtype.is_complex)
    made_up = np.zeros(given.shape) if whole else np.random.default_rng(0).random(given.shape, np.float32)
    values[tensor] = made_up.astype(dtype.as_numpy_dtype)
    return tensor
