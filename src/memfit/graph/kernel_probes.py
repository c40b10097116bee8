"""Unknown kernels, run on a few samples in a process of their own: kernels -> Probe.

What an operation needs while it runs is measured at two batch sizes and drawn out in a line over the bytes of
its tensors, which are known at any size.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.errors import ChildFailed
from memfit.core.records import Kernel, KernelInput, KernelScratch, Probe
from memfit.machine.child_process import ChildProcess
from memfit.machine.onednn import SWITCH
from memfit.machine.readings import no_more_than_there_is
from memfit.private.tensorflow.function_graphs import CALLS_OF_PYTHON
from memfit.private.tensorflow.graph_defs import scratch_of_run
from memfit.private.tensorflow.runtime import uses_onednn

SAMPLES = (2, 4)

_SECONDS = 60.0
_MOST_NUMBERS = 64  # of an input whose value is kept
_NEGLIGIBLE_BYTES = 4096  # so little, or such a share, is no difference
_NEGLIGIBLE_SHARE = 0.05
# A process that shall neither share an allocator's limit nor take all of a GPU.
_ENVIRONMENT = {"TF_CPU_ALLOCATOR_USE_BFC": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@dataclass(frozen=True)
class KernelCandidate:
    """An operation of a traced step, to be run alone."""

    kernel: Kernel | None  # None where it cannot be run alone
    tensor_bytes: int
    scratch_bytes: int | None  # what it needs by its formula, if that is known


Candidates = Mapping[str, KernelCandidate]  # by the names of operations


def kernel_of(operation: Any) -> Kernel | None:
    """An operation as another process can run it; None where that needs more than numbers."""
    node = tf.compat.v1.NodeDef(name="kernel", op=operation.type)
    for name, attribute in operation.node_def.attr.items():
        if not name.startswith("_"):
            node.attr[name].CopyFrom(attribute)
    calls = any(a.func.name or a.list.func for a in node.attr.values())
    inputs = [_input(tensor, operation) for tensor in operation.inputs]
    if calls or operation.type in CALLS_OF_PYTHON or None in inputs:
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


class Prober:
    """Measures kernels in another process, which may be begun before it is known what there is to measure."""

    def __init__(self, onednn: bool | None = None) -> None:
        """With oneDNN or without it, as it is here if that is not said."""
        self._onednn = uses_onednn() if onednn is None else onednn
        self._known = _known.setdefault(self._onednn, {})
        self._child: ChildProcess | None = None

    def begin(self) -> None:
        """Let the process import TensorFlow meanwhile; kernels that have been run may do without it."""
        if self._child is None and not self._known:
            self._child = self._new_child(__name__)

    def _new_child(self, *imports: str) -> ChildProcess:
        return ChildProcess({**_ENVIRONMENT, SWITCH: str(int(self._onednn))}, imports=imports)

    def end(self) -> None:
        """Do without the process, if it was begun."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def probe(self, candidates_at: Callable[[int], Candidates]) -> Probe:
        """The scratch of the operations of a step, measured on a few samples."""
        few, more = (candidates_at(size) for size in SAMPLES)
        kernels = {one.kernel: one for both in (more, few) for one in both.values() if one.kernel is not None}
        order = sorted(kernels, key=lambda kernel: -kernels[kernel].tensor_bytes)
        measured, why_not = self._measured(order)
        found = [
            line
            for name in few.keys() & more.keys()
            if (line := _line(name, [few[name], more[name]], measured)) is not None
        ]
        return Probe(tuple(sorted(found, key=lambda line: line.name)), why_not)

    def _measured(self, kernels: list[Kernel]) -> tuple[dict[Kernel, int], tuple[str, ...]]:
        """The scratch of each kernel that ran, and why others did not if they did not get there."""
        known = self._known
        found = {kernel: known[kernel] for kernel in kernels if kernel in known}
        kernels = [kernel for kernel in kernels if kernel not in found]
        if not kernels:
            self.end()
            return found, ()

        def take(event: Mapping[str, Any]) -> None:
            kernel = kernels[event["number"]]
            found[kernel] = known[kernel] = event["scratch_bytes"]

        arguments = {
            "kernels": [kernel.to_dict() for kernel in kernels],
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "seconds": _SECONDS,
        }
        child, self._child = self._child or self._new_child(), None
        try:
            child.run(measure, arguments, on_event=take)
        except ChildFailed as error:
            left = sum(kernel not in found for kernel in kernels)
            return found, (f"what {left} kernels need: {str(error).splitlines()[0]}",)
        return found, ()


# The scratch of kernels that have been run, with oneDNN and without: a model is traced in many ways.
_known: dict[bool, dict[Kernel, int]] = {}


def _line(name: str, both: list[KernelCandidate], measured: Mapping[Kernel, int]) -> KernelScratch | None:
    """The scratch of an operation at any size; None if it did not run, or if its formula agrees."""
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


def _is_as_said(one: KernelCandidate, seen_bytes: int) -> bool:
    if one.scratch_bytes is None:
        return False
    return abs(one.scratch_bytes - seen_bytes) <= max(_NEGLIGIBLE_BYTES, _NEGLIGIBLE_SHARE * seen_bytes)


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
    """The most bytes that a kernel allocates at a time besides its outputs."""
    node = tf.compat.v1.NodeDef.FromString(base64.b64decode(kernel.node))
    graph_def = tf.compat.v1.GraphDef(node=[node])
    values: dict[Any, Any] = {}
    with tf.Graph().as_default() as graph:
        given = [_tensor(one, values) for one in kernel.inputs]
        mapped = {f"input{place}:0": tensor for place, tensor in enumerate(given)}
        tf.import_graph_def(graph_def, input_map=mapped, name="")
    return scratch_of_run(graph, node.name, values, threads=threads, runs=_RUNS)


def _tensor(given: KernelInput, values: dict[Any, Any]) -> Any:
    """The input tensor of a kernel; a value that the graph does not give is made up and put into `values`."""
    dtype = tf.as_dtype(given.dtype)
    if given.value is not None:
        known = np.asarray(given.value).reshape(given.shape).astype(dtype.as_numpy_dtype)
        return tf.constant(known, dtype)
    tensor = tf.compat.v1.placeholder(dtype, given.shape)
    whole = not (dtype.is_floating or dtype.is_complex)
    made_up = np.zeros(given.shape) if whole else np.random.default_rng(0).random(given.shape, np.float32)
    values[tensor] = made_up.astype(dtype.as_numpy_dtype)
    return tensor
