"""How much of a RAM budget a stream may use for what: plain arithmetic."""

from __future__ import annotations

import os
from dataclasses import dataclass

from memfit.errors import RamTooSmall

# What TensorFlow's threads and the allocator of the C library hold on top of what is counted.
OVERHEAD_BYTES = 24 << 20
# Threads keep memory of tensors that they have let go, for the next ones: most of it those that decode.
_SLACK, _DECODING_SLACK = 1.5, 2.0
MOST_PREFETCHED = 8
_USERS = 2  # batches in the hands of whoever trains: the one it has, and the one it is given


@dataclass(frozen=True)
class Sizes:
    """What the elements of a stream take on their way."""

    held_bytes: int  # for the whole data set: paths, labels, offsets
    raw_bytes: int  # one element as it is read
    working_bytes: int  # while one is decoded, beside the raw bytes and the result
    element_bytes: int  # one element as it is handed out
    kept_bytes: int = 0  # groups of elements that are kept as they were read, since others of them follow
    shelf_bytes: int = 0  # elements that are kept as they are handed out, for the epochs to come


@dataclass(frozen=True)
class Allotment:
    """How wide the parts of a stream are, and what they take at most."""

    parallel: int
    prefetch: int
    window: int  # elements that a shuffle buffer holds, where there is one
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """What all parts take together."""
        return sum(part_bytes for _, part_bytes in self.parts)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decoders() -> int:
    """How many elements are decoded at a time: twice the cores, so that a wait for one stops nobody."""
    return 2 * cores()


def least_bytes(sizes: Sizes, batch_size: int) -> int:
    """What the narrowest stream takes."""
    return _with(sizes, batch_size, 1, 1, 0).total_bytes


def allot(
    sizes: Sizes, *, batch_size: int, ram_bytes: int, width: int, has_window: bool = False
) -> Allotment:
    """The widest stream that stays within `ram_bytes`, on so many cores."""
    candidates = [(parallel, 1) for parallel in range(1, width + 1)]
    candidates += [(width, prefetch) for prefetch in range(2, MOST_PREFETCHED + 1)]
    fitting = [
        allotment
        for parallel, prefetch in candidates
        if (allotment := _with(sizes, batch_size, parallel, prefetch, 0)).total_bytes <= ram_bytes
    ]
    if not fitting:
        least = _with(sizes, batch_size, 1, 1, 0)
        raise RamTooSmall(ram_bytes, least_bytes=least.total_bytes, parts=least.parts, batch_size=batch_size)
    if not has_window:
        return fitting[-1]
    # A window is worth more than batches that wait.
    chosen = fitting[min(len(fitting), width + 1) - 1]
    left_bytes = ram_bytes - chosen.total_bytes
    window = int(left_bytes / (sizes.raw_bytes * _SLACK + 1))
    return _with(sizes, batch_size, chosen.parallel, chosen.prefetch, window)


def _with(sizes: Sizes, batch_size: int, parallel: int, prefetch: int, window: int) -> Allotment:
    batch_bytes = batch_size * sizes.element_bytes
    counted = {
        "groups that are kept": sizes.kept_bytes,
        "reading": 2 * parallel * batch_size * sizes.raw_bytes,
        "decoding": parallel * (sizes.working_bytes + sizes.element_bytes) * _DECODING_SLACK / _SLACK,
        "shuffle window": window * sizes.raw_bytes,
        "batches being filled": (1 + -(-parallel // batch_size)) * batch_bytes,
        "batches that wait": prefetch * batch_bytes,
        "batches in use": _USERS * batch_bytes,
    }
    parts = {name: int(size * _SLACK) for name, size in counted.items() if size}
    fixed = {"index of the data set": sizes.held_bytes, "TensorFlow's own": OVERHEAD_BYTES}
    if sizes.shelf_bytes:
        fixed["elements for the next epochs"] = sizes.shelf_bytes
    return Allotment(parallel, prefetch, window, tuple({**fixed, **parts}.items()))
