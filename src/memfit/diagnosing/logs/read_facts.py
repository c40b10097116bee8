"""A stream of bytes -> facts: each landmark goes to those who know it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from memfit.diagnosing.logs import (
    allocators,
    async_allocator,
    compilers,
    drivers,
    hosts,
    operations,
    own_errors,
    progress_lines,
    tracebacks,
)
from memfit.diagnosing.logs.facts import Facts
from memfit.diagnosing.logs.installed_paths import looks_installed
from memfit.diagnosing.logs.log_lines import Landmark, Stretch, find_hits, pattern_of

Recogniser = Callable[[Landmark, Facts], None]
_TAIL_BYTES = 2**16
_BINARY = 0.02  # of the first bytes: text has no such share of NULs and the like
_CONTROLS = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})

_FAMILIES: tuple[tuple[tuple[bytes, ...], Recogniser], ...] = (
    (tracebacks.LANDMARKS, tracebacks.recognise),
    (allocators.LANDMARKS, allocators.recognise),
    (async_allocator.LANDMARKS, async_allocator.recognise),
    (operations.LANDMARKS, operations.recognise),
    (compilers.LANDMARKS, compilers.recognise),
    (drivers.LANDMARKS, drivers.recognise),
    (hosts.LANDMARKS, hosts.recognise),
    (progress_lines.LANDMARKS, progress_lines.recognise),
    (own_errors.LANDMARKS, own_errors.recognise),
)
_LANDMARKS = {landmark for landmarks, _ in _FAMILIES for landmark in landmarks}
_PATTERN = pattern_of(_LANDMARKS)
# A landmark that begins like a longer one is found in its place.
_RECOGNISERS = {
    landmark: tuple(
        recognise
        for landmarks, recognise in _FAMILIES
        if any(other.startswith(landmark) for other in landmarks)
    )
    for landmark in _LANDMARKS
}


def read_facts(
    blocks: Iterable[bytes],
    on_bytes: Callable[[int], None] = lambda count: None,
    *,
    is_installed: Callable[[str], bool] = looks_installed,
) -> Facts:
    """Everything that a log says of memory; `on_bytes` gets the number of bytes that were read so far."""
    facts = Facts(is_installed)
    told = _Told(blocks, facts, on_bytes)
    line, raw, done = 0, b"", set[Recogniser]()
    for hit in find_hits(told.blocks(), _PATTERN):
        if isinstance(hit, Stretch):
            allocators.recognise_chunks(hit, facts)
            continue
        if hit.line != line or hit.raw != raw:
            line, raw, done = hit.line, hit.raw, set()
        for recognise in _RECOGNISERS[hit.landmark]:
            if recognise not in done:
                done.add(recognise)
                recognise(hit, facts)
    _read_tail(told.tail, facts)
    return facts


class _Told:
    """Blocks on their way through, with their end kept and counted."""

    def __init__(self, blocks: Iterable[bytes], facts: Facts, on_bytes: Callable[[int], None]) -> None:
        self._blocks, self._facts, self._on_bytes = blocks, facts, on_bytes
        self.tail = b""

    def blocks(self) -> Iterator[bytes]:
        facts = self._facts
        for block in self._blocks:
            if facts.size_bytes == 0:
                facts.is_binary = _looks_binary(block[:_TAIL_BYTES])
            facts.size_bytes += len(block)
            facts.lines += block.count(b"\n")
            self.tail = (self.tail + block)[-_TAIL_BYTES:]
            self._on_bytes(facts.size_bytes)
            yield block


def _looks_binary(sample: bytes) -> bool:
    return len(sample) - len(sample.translate(None, _CONTROLS)) > _BINARY * max(1, len(sample))


def _read_tail(tail: bytes, facts: Facts) -> None:
    """The end of a log once more, for words that are too frequent to look for everywhere."""
    first = facts.lines - tail.count(b"\n") + 1
    for match in hosts.TAIL.finditer(tail):
        line = first + tail.count(b"\n", 0, match.start())
        raw = match[0][:4096]
        landmark = re.search(rb"\w{3,}", raw)
        hosts.recognise(Landmark(landmark[0] if landmark else b"", line, raw, (raw, 0, len(raw))), facts)
