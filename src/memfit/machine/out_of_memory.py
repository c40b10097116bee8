"""The errors and log lines that count as running out of memory, decided here and nowhere else.

TensorFlow reports it in many forms: `ResourceExhaustedError` (which it also raises for full disks, open
files and oversized messages), an `InternalError` when a copy to the device failed, an `UnknownError` when
cuDNN could not get its workspace, a `MemoryError` of the host, also from inside a `py_function`. Errors are
judged by type and content, lines of a log by content alone; both know the same phrases.
"""

from __future__ import annotations

import math
import re
import sys

from memfit.core.errors import InvalidSize, MemfitError
from memfit.core.records import OutOfMemory
from memfit.core.units import dtype_bytes, parse_size

# Each of these, in any case of letters, says by itself that memory ran out: in an error and in a log.
PHRASES = (
    "out of memory",
    "OUT_OF_MEMORY",  # CUDA_ERROR_OUT_OF_MEMORY
    "OOM when allocating",
    "failed to allocate",
    "Unable to allocate",  # NumPy
    "Cannot allocate memory",  # the system
    "bad_alloc",  # C++
    "MemoryError",
    "Dst tensor is not initialized",  # a copy to the device
    "Cannot parse tensor from proto",  # a constant of the graph for which there is no room
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cuDNN failed to initialize",
    "could not create cudnn handle",
    "failed to create cublas handle",
)
OTHER_RESOURCES = r"No space left on device|Too many open files|larger than max"
_SAID = "|".join(map(re.escape, PHRASES))
_EXHAUSTED = re.compile(rf"{_SAID}|(?:to|not) allocate|allocate memory", re.IGNORECASE)
_OTHERS = re.compile(_SAID, re.IGNORECASE)
_OTHER_RESOURCES = re.compile(OTHER_RESOURCES, re.IGNORECASE)
# A line of a log has no type, so the name of the error counts too, unless the line names another resource.
RAN_OUT = re.compile(
    rf"^(?!.*(?:{OTHER_RESOURCES})).*(?:{_SAID}|RESOURCE_EXHAUSTED|ResourceExhausted)", re.IGNORECASE
)
_OTHER_TYPES = (
    "InternalError", "UnknownError", "AbortedError", "FailedPreconditionError", "InvalidArgumentError",
)  # fmt: skip

_TENSOR = re.compile(
    r"(?:OOM when )?allocating tensor with shape\s*\[([0-9,]*)\] and type (\S+) on (\S+) by allocator (\S+)"
)
_REQUEST = re.compile(r"to allocate (?:request for )?([0-9.]+ ?(?:bytes|[KMGTP]?i?B))\b", re.IGNORECASE)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}|\[Op:([^\]]+)\]")
_CHECK = re.compile(r"/room(_\d+)?$")  # one that a guard has put before an op


def is_oom(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or on the host."""
    if isinstance(error, MemfitError):
        return False
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError):  # Keras wraps what happens while it builds a model
        return "OOM when allocating tensor with shape" in str(error)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
        return False
    if _OTHER_RESOURCES.search(error.message):
        return False
    if isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return bool(_EXHAUSTED.search(error.message))
    other_types = tuple(getattr(tensorflow.errors, name) for name in _OTHER_TYPES)
    return isinstance(error, other_types) and bool(_OTHERS.search(error.message))


def read_oom(error: BaseException) -> OutOfMemory:
    """The facts of an out-of-memory error: the tensor, its bytes, the device, the op."""
    text = str(getattr(error, "message", error))
    tensor, request, node = _TENSOR.search(text), _REQUEST.search(text), _NODE.search(text)
    message = next((line.strip() for line in text.splitlines() if _EXHAUSTED.search(line)), text[:200])
    if tensor is None:
        return OutOfMemory(
            message or type(error).__name__,
            requested_bytes=_read_size(request),
            op=_op_name(node),
        )
    shape = tuple(int(size) for size in tensor[1].split(",") if size)
    item_bytes = dtype_bytes(tensor[2])
    return OutOfMemory(
        tensor[0],
        requested_bytes=None if item_bytes is None else math.prod(shape) * item_bytes,
        shape=shape,
        dtype=tensor[2],
        device=tensor[3].rpartition("device:")[2],
        allocator=tensor[4],
        op=_op_name(node),
    )


def _read_size(request: re.Match[str] | None) -> int | None:
    try:
        return None if request is None else parse_size(request[1])
    except InvalidSize:
        return None


def _op_name(node: re.Match[str] | None) -> str | None:
    """The name of an op; a check for room stands for the op that it is below."""
    return None if node is None else _CHECK.sub("", node[1] or node[2].strip()) or None
