"""The parts of a RAM budget: how wide a stream may be, by plain arithmetic."""

from __future__ import annotations

import os
from dataclasses import dataclass

from memfit.core.errors import RamTooSmall

# What TensorFlow's threads and the allocator of the C library hold on top of what is counted.
OVERHEAD_BYTES = 24 << 20
MOST_PREFETCHED = 8

# Threads keep memory of tensors that they have let go, for the next ones: most of it those that decode.
_SLACK, _DECODING_SLACK = 1.5, 2.0
_MOST_READ = 512  # elements at once, since every call of Python takes its time
_READING = 1 / 16  # of the RAM, for elements that are read beyond a batch
READERS = 2  # threads that read what others decode: Python runs in one at a time, while another waits
_USERS = 2  # batches in the hands of whoever trains: the one it has, and the one it is given


@dataclass(frozen=True)
class SampleSizes:
    """The bytes that the elements of a stream take as they are read, decoded, handed out and kept."""

    held_bytes: int  # for the whole data set: paths, labels, offsets
    raw_bytes: int  # one element as it is read
    working_bytes: int  # while one is decoded, beside the raw bytes and the result
    element_bytes: int  # one element as it is handed out
    kept_bytes: int = 0  # groups of elements that are kept as they were read, since others of them follow
    cached_bytes: int = 0  # elements that are kept as they are handed out, for the epochs to come


@dataclass(frozen=True)
class Allotment:
    """The parallelism, prefetch and window of a stream, and the bytes that its parts take at most."""

    parallel: int
    prefetch: int
    read: int  # elements that are read at once
    window: int  # elements that a shuffle buffer holds, where there is one
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """The bytes of all parts together."""
        return sum(part_bytes for _, part_bytes in self.parts)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decoders() -> int:
    """The number of elements decoded at a time: twice the cores, so that others go on while one waits."""
    return 2 * cores()


def least_bytes(sizes: SampleSizes, batch_size: int) -> int:
    """The bytes that the narrowest stream takes."""
    return _with(sizes, batch_size, 1, 1, 0).total_bytes


def allot(
    sizes: SampleSizes,
    *,
    batch_size: int,
    ram_bytes: int,
    width: int,
    has_window: bool = False,
    reads_ahead: bool = False,
) -> Allotment:
    """The widest stream that stays within `ram_bytes`, on so many cores.

    One that reads ahead reads more than a batch at once, where that takes little.
    """
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
    if reads_ahead:
        return _reading_ahead(sizes, batch_size, ram_bytes, fitting[-1])
    if not has_window:
        return fitting[-1]
    # A window is worth more than batches that wait.
    chosen = fitting[min(len(fitting), width + 1) - 1]
    left_bytes = ram_bytes - chosen.total_bytes
    window = int(left_bytes / (sizes.raw_bytes * _SLACK + 1))
    return _with(sizes, batch_size, chosen.parallel, chosen.prefetch, window)


def _reading_ahead(sizes: SampleSizes, batch_size: int, ram_bytes: int, found: Allotment) -> Allotment:
    room_bytes = min(_READING * ram_bytes, ram_bytes - found.total_bytes)
    more = int(room_bytes / (2 * min(READERS, found.parallel) * sizes.raw_bytes * _SLACK + 1))
    read = max(batch_size, min(_MOST_READ, batch_size + more))
    return _with(sizes, batch_size, found.parallel, found.prefetch, found.window, read)


def _with(
    sizes: SampleSizes, batch_size: int, parallel: int, prefetch: int, window: int, read: int | None = None
) -> Allotment:
    read = batch_size if read is None else read
    ahead = min(READERS, parallel) * (read - batch_size)
    batch_bytes = batch_size * sizes.element_bytes
    counted = {
        "groups that are kept": sizes.kept_bytes,
        "reading": 2 * (parallel * batch_size + ahead) * sizes.raw_bytes,
        "decoding": parallel * (sizes.working_bytes + sizes.element_bytes) * _DECODING_SLACK / _SLACK,
        "shuffle window": window * sizes.raw_bytes,
        "batches being filled": (1 + -(-parallel // batch_size)) * batch_bytes,
        "batches that wait": prefetch * batch_bytes,
        "batches in use": _USERS * batch_bytes,
    }
    parts = {name: int(size * _SLACK) for name, size in counted.items() if size}
    fixed = {"index of the data set": sizes.held_bytes, "TensorFlow's own": OVERHEAD_BYTES}
    if sizes.cached_bytes:
        fixed["elements for the next epochs"] = sizes.cached_bytes
    return Allotment(parallel, prefetch, read, window, tuple({**fixed, **parts}.items()))
