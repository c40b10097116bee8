"""cuda_malloc_async: TensorFlow's allocator that leaves pooling to the driver."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, Failure
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, read_size
from memfit.diagnosing.logs.progress_lines import look_back

_FAILED = re.compile(rf"(\S*)\s*cuMemAllocAsync failed to allocate ({SIZE})")
_FREE = re.compile(r"Free memory/Total memory: (\d+)/(\d+)")
_HISTOGRAM = re.compile(r"(?m)(?:^|\] )\s*(\d{1,18}), (\d{1,12});?\s*$")

LANDMARKS = (b"MemAllocAsync failed", b"Histogram of current allocation")


def recognise(hit: Landmark, facts: Facts) -> None:
    """A failed allocation with what the driver says is free, or what is in use by sizes."""
    if hit.landmark.startswith(b"Histogram"):
        _histogram(hit, facts)
        return
    match = _FAILED.search(hit.text)
    if match is None:
        return
    free = _FREE.search(hit.text + hit.ahead(512))
    failure = Failure(
        "allocator",
        hit.evidence(),
        hit.worker,
        requested_bytes=read_size(match[2]),
        allocator=match[1] or "cuda_malloc_async",
        free_bytes=int(free[1]) if free else None,
        total_bytes=int(free[2]) if free else None,
    )
    look_back(hit, facts)
    facts.fail(failure)
    facts.new_dump(hit.worker, hit.line).failure = failure


def _histogram(hit: Landmark, facts: Facts) -> None:
    dump = facts.dump(hit.worker, hit.line)
    for size, count in _HISTOGRAM.findall(hit.ahead()):
        dump.add_chunk(dump.summed, int(size), int(count))
