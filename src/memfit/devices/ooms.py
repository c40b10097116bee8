"""What counts as running out of memory, decided here and nowhere else.

TensorFlow reports it in many forms: `ResourceExhaustedError` (which it also raises for full disks, open
files and oversized messages), an `InternalError` when a copy to the device failed, an `UnknownError` when
cuDNN could not get its workspace, a `MemoryError` of the host, also from inside a `py_function`.
"""

from __future__ import annotations

import math
import re
import sys

from memfit.errors import InvalidSize, MemfitError
from memfit.records import OutOfMemory
from memfit.units import dtype_bytes, parse_size

_OTHER_RESOURCES = re.compile(r"No space left on device|Too many open files|larger than max", re.IGNORECASE)
_EXHAUSTED = re.compile(
    r"OOM when allocating|out of memory|(?:to|not) allocate|allocate memory|MemoryError", re.IGNORECASE
)
_OTHERS = re.compile(
    r"Dst tensor is not initialized"
    r"|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: Out of memory|out of memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cuDNN failed to initialize|[Cc]ould not create cudnn handle|failed to create cublas handle"
    r"|[Ff]ailed to allocate (?:memory|scratch|request)|MemoryError: Unable to allocate"
    r"|Cannot parse tensor from proto",  # a constant of the graph for which there is no room
)
_OTHER_TYPES = (
    "InternalError", "UnknownError", "AbortedError", "FailedPreconditionError", "InvalidArgumentError",
)  # fmt: skip

_TENSOR = re.compile(
    r"(?:OOM when )?allocating tensor with shape\s*\[([0-9,]*)\] and type (\S+) on (\S+) by allocator (\S+)"
)
_REQUEST = re.compile(r"to allocate (?:request for )?([0-9.]+ ?(?:bytes|[KMGTP]?i?B))\b", re.IGNORECASE)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}|\[Op:([^\]]+)\]")


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
    if isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return bool(_EXHAUSTED.search(error.message)) and not _OTHER_RESOURCES.search(error.message)
    other_types = tuple(getattr(tensorflow.errors, name) for name in _OTHER_TYPES)
    return isinstance(error, other_types) and bool(_OTHERS.search(error.message))


def read_oom(error: BaseException) -> OutOfMemory:
    """What an out-of-memory error says: the tensor, its bytes, the device, the op."""
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
    return None if node is None else node[1] or node[2].strip() or None
