"""The causes that the allocator's pool speaks for: data, weights, gaps, a leak, or plainly too much."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from memfit.core.records import Evidence
from memfit.core.units import format_size
from memfit.diagnosing.causes.case import Case, Clue
from memfit.diagnosing.logs.facts import Dump
from memfit.diagnosing.logs.log_lines import clean, quoted

_LITTLE_USED = 0.6  # of the pool: with less in use, gaps are the cause and not a hint
_FEW = 8  # chunks that hold a data set
_MOST_OF_IT = 0.4  # of what is in use
_LARGER = 3  # than the request, and than the next size
_MUCH_LARGER = 6  # than the request: no activation
_FULL = 0.9
_ROUNDING_BYTES = 256


def find_gaps(case: Case) -> Iterator[Clue]:
    """Enough is free, but not in one piece."""
    dump, request = case.dump, case.request_bytes
    if dump is None or not request or dump.largest_free is None:
        return
    largest, line, raw = dump.largest_free
    if largest >= request or dump.unused_bytes < request:
        return
    share = dump.share
    strength = 2.8 if share is not None and share <= _LITTLE_USED else 1.0
    words = (
        f"{format_size(dump.unused_bytes)} were free in {dump.free_chunks} pieces, the largest of "
        f"{format_size(largest)}, but {format_size(request)} were asked for in one"
    )
    if share is not None:
        words += f"; only {share:.0%} were in use" if strength > 2 else f"; {share:.0%} were in use"
    quote = Evidence(line, quoted(clean(raw), "of size"))
    yield Clue("fragmentation", strength, words, (quote, *case.stats), dump.unused_bytes)


def find_large_chunks(case: Case) -> Iterator[Clue]:
    """A few chunks that dwarf everything else: a data set, or weights with what an optimizer keeps."""
    dump, request = case.dump, case.request_bytes
    if dump is None or not dump.used_bytes:
        return
    sizes = _dominant(dump, request or 0)
    held = sum(size * dump.chunks[size] for size in sizes)
    if not sizes or held < _MOST_OF_IT * dump.used_bytes:
        return
    listing = " and ".join(f"{dump.chunks[size]} × {format_size(size)}" for size in sizes[:3])
    share = f"{format_size(held)} of the {format_size(dump.used_bytes)} in use"
    quotes = tuple(dump.quotes[size] for size in sizes if size in dump.quotes)
    samples = _as_samples(sizes, case.failure.shape if case.failure else None)
    if samples is None and min(dump.chunks[size] for size in sizes) >= 3:
        words = f"{share} are a few tensors, each held several times ({listing}), as weights with their slots"
        yield Clue("weights", 1.6, words, quotes, held)
        return
    words = f"a few chunks hold {share} ({listing})"
    if samples:
        words += f", {samples}"
    is_sure = samples is not None or sizes[-1] >= _MUCH_LARGER * (request or 0)
    strength = 2.6 if is_sure else 1.6  # the first activations of a network are large too
    yield Clue("data_on_device", strength, f"{words}: a data set on the device", quotes, held)


def _dominant(dump: Dump, request: int) -> list[int]:
    """The largest sizes, of few chunks, with a wide gap to all others and to what was asked for."""
    ranked = sorted(dump.chunks, reverse=True)
    found, count = 0, 0
    for number, (size, smaller) in enumerate(itertools.pairwise([*ranked, 0]), 1):
        count += dump.chunks[size]
        if count > _FEW:
            break
        if size >= _LARGER * max(smaller, request, 1):
            found = number
    return ranked[:found]


def _as_samples(sizes: list[int], shape: tuple[int, ...] | None) -> str | None:
    """The number of images of the shape's height and width in each chunk, where that comes out even."""
    if shape is None or len(shape) != 4:
        return None
    pairs = sorted((shape[1:3], shape[2:4]), key=lambda pair: pair[0] != pair[1])
    for height, width in pairs:
        for channels, item_bytes in ((3, 4), (1, 4), (3, 1), (1, 1), (3, 2), (1, 2)):
            sample = height * width * channels * item_bytes
            if height > 8 and width > 8 and all(0 <= size % sample < _ROUNDING_BYTES for size in sizes):
                counts = " and ".join(f"{size // sample:,}" for size in sizes[:3])
                return f"exactly {counts} samples of {height} × {width} × {channels}"
    return None


def find_steps_in_chunks(case: Case) -> Iterator[Clue]:
    """As many chunks of one size as there were steps: each step leaves something behind."""
    dump, progress = case.dump, case.facts.progress
    if dump is None or not progress.step:
        return
    steps = _steps(case)
    for size, count in dump.chunks.items():
        if count >= 16 and 0.8 * steps <= count <= 4.2 * steps and size * count > 0.2 * dump.used_bytes:
            words = (
                f"{count} chunks of {format_size(size)} are in use after {steps} steps: "
                "each step leaves something behind"
            )
            quotes = tuple(quote for quote in (dump.quotes.get(size), progress.evidence) if quote)
            yield Clue("leak", 2.7, words, quotes, size * count)
            return


def _steps(case: Case) -> int:
    progress = case.facts.progress
    before = max(0, (progress.epoch or 1) - 1) * (progress.steps or 0)
    return before + (progress.step or 0)


def find_growth(case: Case) -> Iterator[Clue]:
    """More in use from one dump to the next, or in what the script prints of it."""
    used = [dump.used_bytes for dump in case.facts.dumps if dump.used_bytes and dump.worker == _worker(case)]
    if len(used) >= 3 and all(before < after for before, after in itertools.pairwise(used)):
        grew = f"{format_size(used[0])} to {format_size(used[-1])}"
        words = f"what is in use grew from {grew} over {len(used)} dumps"
        yield Clue("leak", 2.7, words, case.stats)
    readings = list(case.facts.readings)
    if case.facts.rising >= 4 and readings[-1].size_bytes > 1.2 * readings[0].size_bytes:
        first, last = readings[0], readings[-1]
        words = (
            f"the memory that the script prints rises from {format_size(first.size_bytes)} to "
            f"{format_size(last.size_bytes)}, each time"
        )
        yield Clue("leak", 2.75, words, (first.evidence, last.evidence))


def _worker(case: Case) -> str:
    return case.dump.worker if case.dump else ""


def find_long_runs(case: Case) -> Iterator[Clue]:
    """Training went well for long, with the same shapes, and then ran out."""
    progress, facts = case.facts.progress, case.facts
    if case.failure is None or not case.failed("allocator", "tensor", "request", "copy"):
        return
    evidence = (progress.evidence,) if progress.evidence else ()
    # At an epoch's end something else runs than before: validation, a checkpoint.
    is_within = not _in_validation(case) and progress.step != progress.steps
    if (progress.epoch or 1) >= 3 and progress.step:
        words = (
            f"training went well for {(progress.epoch or 1) - 1} epochs of the same shapes before it ran out"
        )
        yield Clue("leak", 2.2 if is_within else 1.2, words, evidence)
    elif _steps(case) >= 1000:
        words = f"training went well for {_steps(case):,} steps before it ran out"
        yield Clue("leak", 2.1 if is_within else 1.2, words, evidence)
    if facts.retraces:
        words = "functions are traced again and again, and each trace stays"
        strength = 1.9 if facts.retraces.count > 2 else 1.0
        yield Clue("leak", strength, words, tuple(facts.retraces)[:1])
    if any(frame.is_users and re.search(r"\.append\(|\+=\s*\[", frame.code) for frame in case.frames[-3:]):
        yield Clue("leak", 2.3, "the line that ran out appends to a list")


def _in_validation(case: Case) -> bool:
    names = " ".join([*case.ops, *(frame.function for frame in case.frames)])
    return bool(re.search(r"test_function|test_step|evaluate|predict", names))


def find_full_pool(case: Case) -> Iterator[Clue]:
    """A pool that is full of many things, or a request that is too large for any pool."""
    dump = case.dump
    if dump is None or dump.share is None or dump.whole_bytes is None:
        return
    if dump.share >= _FULL or (case.request_bytes or 0) > dump.unused_bytes:
        words = f"{format_size(dump.used_bytes)} of {format_size(dump.whole_bytes)} are in use"
        yield Clue("activations", 1.4, words, case.stats)
