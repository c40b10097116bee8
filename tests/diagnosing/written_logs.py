"""Logs in the formats of TensorFlow and its surroundings, with invented numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from memfit.core.units import format_size

Era = Literal["first", "middle", "newest"]
MIB, GIB = 2**20, 2**30
BAR = "\r{0}/500 [======>.......................] - ETA: 7s - loss: 0.7012 - accuracy: 0.5512"


def _size(size: int) -> str:
    return format_size(size).replace(" ", "")


def _stamp(era: Era, line: int) -> str:
    if era == "first":
        return f"I tensorflow/core/common_runtime/bfc_allocator.cc:{line}] "
    if era == "middle":
        return f"2031-02-03 04:05:06.{line:06}: I tensorflow/tsl/framework/bfc_allocator.cc:{line}] "
    return f"I0000 00:00:1900000000.{line:06}    4242 bfc_allocator.cc:{line}] "


def failure(request: int, op: str | None, *, era: Era = "middle", allocator: str = "GPU_0_bfc") -> str:
    if era == "first":
        return (
            f"W tensorflow/core/common_runtime/bfc_allocator.cc:271] Ran out of memory trying to allocate "
            f"{_size(request)}.  See logs for memory state.\n"
        )
    stamp = _stamp(era, 491).replace(": I ", ": W ").replace("I0000", "W0000")
    return (
        f"{stamp}Allocator ({allocator}) ran out of memory trying to allocate {_size(request)} "
        f"(rounded to {request})requested by op {op or ''}\n"
        "If the cause is memory fragmentation maybe the environment variable "
        "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. \n"
        "Current allocation summary follows.\n"
    )


def dump(
    in_use: Mapping[int, int],
    free: Sequence[int],
    *,
    limit: int,
    era: Era = "middle",
    allocator: str = "GPU_0_bfc",
) -> str:
    """What the allocator writes: bins, chunks, the summary, statistics."""
    used, there = sum(size * count for size, count in in_use.items()), sum(free)
    lines = [_stamp(era, 1041) + f"BFCAllocator dump for {allocator}"]
    lines.append(
        _stamp(era, 1048) + f"Bin (268435456): \tTotal Chunks: {len(in_use)}, Chunks in use: {len(in_use)}. "
        f"{_size(used + there)} allocated for chunks. {_size(used)} in use in bin. {_size(used)} "
        "client-requested in use in bin."
    )
    lines.append(_stamp(era, 1077) + f"Next region of size {limit}")
    word = "Chunk at 0x" if era == "first" else "InUse at "
    address = 0x7FAA00000000
    for size, count in in_use.items():
        for _ in range(count):
            lines.append(_stamp(era, 1097) + f"{word}{address:x} of size {size} next 7")
            address += size
    for size in free:
        gap = "Free at 0x" if era == "first" else "Free  at "
        lines.append(_stamp(era, 1097) + f"{gap}{address:x} of size {size} next 18446744073709551615")
        address += size
    lines.append(_stamp(era, 1102) + "     Summary of in-use Chunks by size: ")
    for size, count in sorted(in_use.items()):
        lines.append(_stamp(era, 1105) + f"{count} Chunks of size {size} totalling {_size(size * count)}")
    lines.append(_stamp(era, 1109) + f"Sum Total of in-use chunks: {_size(used)}")
    return "\n".join(lines) + "\n" + _statistics(used, there, limit, era)


def _statistics(used: int, there: int, limit: int, era: Era) -> str:
    pool = used + there

    def number(size: int) -> str:
        return _size(size) if era == "newest" else str(size)

    lines = []
    if era != "first":
        kind = "size" if era == "newest" else "bytes"
        lines.append(
            _stamp(era, 1111) + f"Total {kind} in pool: {number(pool)} memory_limit_: {number(limit)} "
            f"available {kind}: {number(limit - pool)} curr_region_allocation_bytes_: {number(2 * limit)}"
        )
    lines.append(_stamp(era, 1116) + "Stats: ")
    for name, size in (("Limit", limit), ("InUse", used), ("MaxInUse", used)):
        lines.append(f"{name}: {number(size):>24}")
    lines.append(f"NumAllocs: {51234:>20}")
    lines.append(f"MaxAllocSize: {number(used):>17}")
    if era != "first":
        lines += ["Reserved:                            0", "LargestFreeBlock:                    0", ""]
    return "\n".join(lines) + "\n"


def tensor(shape: Sequence[int], op: str, *, device: str = "GPU:0", allocator: str = "GPU_0_bfc") -> str:
    """What an op says that could not have its output."""
    where = f"/job:localhost/replica:0/task:0/device:{device}"
    return (
        f"OOM when allocating tensor with shape[{','.join(map(str, shape))}] and type float on {where} "
        f"by allocator {allocator}\n\t [[{{{{node {op}}}}}]]\nHint: If you want to see a list of allocated "
        "tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions.\n"
    )


def traceback(*frames: tuple[str, int, str, str], error: str) -> str:
    """A traceback: files, lines, functions and code."""
    lines = ["Traceback (most recent call last):"]
    for path, line, function, code in frames:
        lines += [f'  File "{path}", line {line}, in {function}', f"    {code}"]
    return "\n".join([*lines, error]) + "\n"


USER = ("/home/somebody/work/train.py", 41, "<module>", "main()")
FIT = ("/home/somebody/work/train.py", 17, "main", "model.fit(dataset)")
KERAS = (
    "/opt/env/lib/python3.12/site-packages/keras/src/utils/traceback_utils.py",
    122,
    "error_handler",
    "raise e.with_traceback(filtered_tb) from None",
)
EXHAUSTED = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: "
EPOCH = "Epoch 1/4\n" + "".join(BAR.format(step) for step in range(1, 7)) + "\n"

ACTIVATIONS = (
    EPOCH
    + failure(700 * MIB, "model/block_3/conv/Conv2D")
    + dump({690 * MIB: 6, 210 * MIB: 9, 70 * MIB: 11, 256: 40}, [90 * MIB], limit=7 * GIB)
    + traceback(USER, FIT, KERAS, error=EXHAUSTED + "Graph execution error:\n")
    + tensor((112, 64, 160, 160), "model/block_3/conv/Conv2D")
)
