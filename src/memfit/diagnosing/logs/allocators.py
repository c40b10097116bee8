"""TensorFlow's BFC allocator: that it ran out, and its dumps, old and new."""

from __future__ import annotations

import re
from collections import Counter

from memfit.diagnosing.logs.facts import Dump, Facts, Failure
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, Stretch, read_size, worker_of
from memfit.diagnosing.logs.progress_lines import look_back

_RAN_OUT = re.compile(
    rf"(?:Allocator \((?P<allocator>[^)]*)\) )?[Rr]an out of memory trying to allocate (?P<size>{SIZE})"
    r"(?:\s*\(rounded to (?P<rounded>\d+)\))?(?:\s*requested by op ?(?P<op>\S*))?"
)
_IN_USE = re.compile(rb"(?:InUse|Chunk) at (?:0x)?[0-9a-fA-F]+ of size (\d{1,18})")
_FREE = re.compile(rb"Free {1,2}at (?:0x)?[0-9a-fA-F]+ of size (\d{1,18})")
_BY_OP = re.compile(rb"of size (\d{1,18}) by op (\S{1,200})")  # of builds that keep books
_SUMMARY = re.compile(r"(\d{1,12}) Chunks of size (\d{1,18}) totalling")
_BIN = re.compile(
    rf"Bin \(\d+\):.*?({SIZE}) allocated for chunks\. "
    rf"(?:(?:{SIZE} client-requested for chunks\. )?({SIZE}) in use in bin)?"
)
_TOTAL = re.compile(rf"Sum Total of in-use chunks: ({SIZE})")
_NUMBER = rf"(?:{SIZE}|\d{{1,18}})"  # bytes, or since TensorFlow 2.20 a size with a unit
_POOL = re.compile(
    rf"Total (?:bytes|size) in pool: ({_NUMBER}) memory_limit_: ({_NUMBER})"
    rf"(?: available (?:bytes|size): ({_NUMBER}))?"
)
_STAT = re.compile(rf"(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize):\s+({_NUMBER})\s*$")
_DUMP = re.compile(r"BFCAllocator dump for (\S+)")
_MOST_OPS = 4096

LANDMARKS = (
    b"Allocator (",
    b"Ran out of memory",
    b"Chunks of size ",
    b"Bin (",
    b"Sum Total of in-use",
    b"Total bytes in pool",
    b"Total size in pool",
    b"kInvalidChunkHandle",
    b"BFCAllocator dump for",
    b"Limit: ",
    b"InUse: ",
    b"NumAllocs: ",
    b"MaxAllocSize: ",
)


def recognise_chunks(stretch: Stretch, facts: Facts) -> None:
    """The chunks of a dump: by far the most lines of a log, so they are counted many at a time."""
    window, begin, end, _ = stretch
    first = window.find(b" of size ", begin, end)
    if first < 0:
        return
    start = max(begin, window.rfind(b"\n", begin, first) + 1)
    if (worker := worker_of(window[start:first])) == "":
        _count(stretch, facts, worker)
        return
    line = stretch.line
    for raw in window[begin:end].splitlines(keepends=True):  # several write at once: each line has its own
        _count(Stretch(raw, 0, len(raw), line), facts, worker_of(raw[:256]))
        line += raw.endswith(b"\n")


def _count(stretch: Stretch, facts: Facts, worker: str) -> None:
    window, begin, end, line = stretch
    in_use = Counter(_IN_USE.findall(window, begin, end))
    free = list(_FREE.finditer(window, begin, end))
    if not (in_use or free):
        return
    dump = facts.dump(worker, line)
    for size, count in in_use.items():
        dump.add_chunk(dump.listed, int(size), count)
    for match in free:
        _add_free(dump, match, stretch)
    if window.find(b" by op ", begin, end) >= 0:
        for found, op in _BY_OP.findall(window, begin, end)[:_MOST_OPS]:
            dump.ops.setdefault(int(found), op.decode(errors="replace"))


def _add_free(dump: Dump, match: re.Match[bytes], stretch: Stretch) -> None:
    size, at = int(match[1]), match.start()
    dump.free_bytes += size
    dump.free_chunks += 1
    if dump.largest_free is None or size > dump.largest_free[0]:
        line = stretch.line + stretch.window.count(b"\n", stretch.begin, at)
        dump.largest_free = (size, line, match[0])


def recognise(hit: Landmark, facts: Facts) -> None:
    """Everything else that the allocator says."""
    if hit.landmark in (b"Allocator (", b"Ran out of memory"):
        _ran_out(hit, facts)
    elif hit.landmark == b"kInvalidChunkHandle":  # the allocator itself gives up, under XLA
        facts.fail(Failure("request", hit.evidence(), hit.worker))
    elif (begun := _DUMP.search(hit.text)) is not None:
        _begin(hit, facts).allocator = begun[1]
    else:
        _part(hit, facts)


def _begin(hit: Landmark, facts: Facts) -> Dump:
    """The dump that begins here, which may belong to a failure that was just read."""
    dump = facts.dump(hit.worker, hit.line)
    return dump if dump.is_empty else facts.new_dump(hit.worker, hit.line)


def _ran_out(hit: Landmark, facts: Facts) -> None:
    match = _RAN_OUT.search(hit.text)
    if match is None:
        return
    if "not a failure" in hit.text:
        facts.warnings.add(hit.evidence())
        return
    failure = Failure(
        "allocator",
        hit.evidence(),
        hit.worker,
        requested_bytes=int(match["rounded"]) if match["rounded"] else read_size(match["size"]),
        allocator=match["allocator"],
        op=match["op"],
    )
    look_back(hit, facts)
    facts.fail(failure)
    _begin(hit, facts).failure = failure


def _part(hit: Landmark, facts: Facts) -> None:
    text, dump = hit.text, facts.dump(hit.worker, hit.line)
    if (summary := _SUMMARY.search(text)) is not None:
        count, size = int(summary[1]), int(summary[2])
        dump.add_chunk(dump.summed, size, count)
        _keep_quote(dump, size, hit)
    elif (bin_ := _BIN.search(text)) is not None:
        dump.bins_bytes += read_size(bin_[1]) or 0
        dump.bins_in_use_bytes += read_size(bin_[2]) or 0
    elif (total := _TOTAL.search(text)) is not None:
        dump.in_use_bytes = read_size(total[1])
    elif (pool := _POOL.search(text)) is not None:
        dump.pool_bytes, dump.limit_bytes = read_size(pool[1]), read_size(pool[2])
    elif (stat := _STAT.search(text)) is not None:
        _stat(hit, facts, stat[1], read_size(stat[2]) or 0)


def _keep_quote(dump: Dump, size: int, hit: Landmark) -> None:
    """The lines of the sizes that hold most."""
    dump.quotes[size] = hit.evidence()
    if len(dump.quotes) > 8:
        dump.quotes.pop(min(dump.quotes, key=lambda kept: kept * dump.summed.get(kept, 0)))


def _stat(hit: Landmark, facts: Facts, name: str, value: int) -> None:
    dump = facts.dump(hit.worker, hit.line)
    if name in dump.stats and name == "Limit":  # of another dump, whose beginning is not there
        dump = facts.new_dump(hit.worker, hit.line)
    dump.stats[name] = value
    if name == "InUse" or dump.stats_evidence is None:
        dump.stats_evidence = hit.evidence()
