"""Kernels that nobody knows, run on a few samples in a process of their own: kernels -> Probe.

What an operation needs while it runs is measured at two batch sizes and drawn out in a line over the bytes of
its tensors, which are known at any size.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.devices import run_in_child
from memfit.errors import ChildFailed
from memfit.programs import trials
from memfit.records import Kernel, KernelInput, KernelScratch, Probe

SAMPLES = (2, 4)

_SECONDS = 60.0
_MOST_NUMBERS = 64  # of an input whose value is kept
_NEGLIGIBLE_BYTES = 4096  # so little, or such a share, is no difference
_NEGLIGIBLE_SHARE = 0.05
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
# A process that shall neither share an allocator's limit nor take all of a GPU.
_ENVIRONMENT = {"TF_CPU_ALLOCATOR_USE_BFC": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@dataclass(frozen=True)
class Candidate:
    """An operation of a traced step, to be run alone."""

    kernel: Kernel | None  # None where it cannot be run alone
    tensor_bytes: int
    scratch_bytes: int | None  # what it needs by its formula, if that is known


Candidates = Mapping[str, Candidate]  # by the names of operations


def kernel_of(operation: Any) -> Kernel | None:
    """An operation as another process can run it; None where that needs more than numbers."""
    node = tf.compat.v1.NodeDef(name="kernel", op=operation.type)
    for name, attribute in operation.node_def.attr.items():
        if not name.startswith("_"):
            node.attr[name].CopyFrom(attribute)
    calls = any(a.func.name or a.list.func for a in node.attr.values())
    inputs = [_input(tensor, operation) for tensor in operation.inputs]
    if calls or operation.type in _PYTHON or None in inputs:
        return None
    node.input.extend(f"input{place}" for place in range(len(inputs)))
    written = base64.b64encode(node.SerializeToString(deterministic=True)).decode()
    return Kernel(written, tuple(one for one in inputs if one is not None))


def _input(tensor: Any, operation: Any) -> KernelInput | None:
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or not tensor.shape.is_fully_defined():
        return None
    value = _value(tensor, operation) if tensor.shape.num_elements() <= _MOST_NUMBERS else None
    known = None if value is None or tensor.dtype.is_complex else tuple(map(float, value.ravel()))
    return KernelInput(tuple(tensor.shape), tensor.dtype.name, known)


def _value(tensor: Any, operation: Any) -> Any:
    """The value of what an operation takes, where the graph says it."""
    shape = None
    if tensor.op.type == "ShapeN":
        shape = tensor.op.inputs[tensor.value_index].shape
    elif "Backprop" in operation.type and tensor.dtype.is_integer:
        shape = operation.outputs[0].shape  # the gradient's, which a convolution has to be told
    if shape is not None:
        return np.asarray(shape.as_list()) if shape.is_fully_defined() else None
    return tf.get_static_value(tensor)


def probe(candidates_at: Callable[[int], Candidates]) -> Probe:
    """What the operations of a step need while they run, as seen on a few samples."""
    few, more = (candidates_at(size) for size in SAMPLES)
    kernels = {one.kernel: one for both in (more, few) for one in both.values() if one.kernel is not None}
    order = sorted(kernels, key=lambda kernel: -kernels[kernel].tensor_bytes)
    measured, why_not = _measured(order)
    found = [
        line
        for name in few.keys() & more.keys()
        if (line := _line(name, [few[name], more[name]], measured)) is not None
    ]
    return Probe(tuple(sorted(found, key=lambda line: line.name)), why_not)


def _measured(kernels: list[Kernel]) -> tuple[dict[Kernel, int], tuple[str, ...]]:
    """The scratch of each kernel that ran, and why others did not if they did not get there."""
    found: dict[Kernel, int] = {}

    def take(event: Mapping[str, Any]) -> None:
        found[kernels[event["number"]]] = event["scratch_bytes"]

    arguments = {
        "kernels": [kernel.to_dict() for kernel in kernels],
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "seconds": _SECONDS,
    }
    try:
        run_in_child(trials.measure, arguments, on_event=take, environment=_ENVIRONMENT)
    except ChildFailed as error:
        return found, (f"what {len(kernels) - len(found)} kernels need: {str(error).splitlines()[0]}",)
    return found, ()


def _line(name: str, both: list[Candidate], measured: Mapping[Kernel, int]) -> KernelScratch | None:
    """What an operation needs at any size; None if it did not run, or as its formula has it."""
    seen = [measured.get(one.kernel) if one.kernel is not None else None for one in both]
    few, more = seen
    if few is None or more is None:
        return None
    if all(_is_as_said(one, size) for one, size in zip(both, (few, more), strict=True)):
        return None
    grown = both[1].tensor_bytes - both[0].tensor_bytes
    if grown <= 0 or more <= few:
        return KernelScratch(name, float(max(few, more) if grown <= 0 else more))
    slope = (more - few) / grown
    return KernelScratch(name, more - slope * both[1].tensor_bytes, slope)


def _is_as_said(one: Candidate, seen_bytes: int) -> bool:
    if one.scratch_bytes is None:
        return False
    return abs(one.scratch_bytes - seen_bytes) <= max(_NEGLIGIBLE_BYTES, _NEGLIGIBLE_SHARE * seen_bytes)
