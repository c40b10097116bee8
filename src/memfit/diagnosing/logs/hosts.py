"""The host: arrays that found no memory, and processes that were killed."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, Failure
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, read_shape, read_size
from memfit.diagnosing.logs.operations import op_in
from memfit.diagnosing.logs.progress_lines import look_back

KILLED_FOR_MEMORY = re.compile(
    r"oom[-_ ]?kill|Out of memory: Kill|cgroup out of memory"
    r"|OutOfMemory(?:Error)?: .*kill|OutOfMemoryKiller"
    r"|Exceeded (?:job|step|\w+) memory limit|TERM_MEMLIMIT|\bOUT_OF_ME"
    r"|[Kk]illed.{0,40}(?:memory|mem |vmem|RAM)|(?:memory|vmem|mem) .{0,40}exceeded (?:the )?limit"
    r"|low on resource: memory"
    r"|crashed after using all available RAM|tried to allocate more memory than is available"
    r"|using .{0,20}memory.{0,60}(?:[Kk]illed|limit exceeded)|[Mm]emory limit exceeded",
    re.IGNORECASE,
)
_KILLED = re.compile(
    r"^\s*Killed(?:: 9)?\s*$|[Kk]ernel (?:appears to have )?died"
    r"|\b\d+\s+Killed\s+\S|: killed\b|signal 9\b|SIGKILL"
    r"|(?:exit(?:ed)?|returned?|status|code)\b[^\n]{0,30}\b137\b|exit(?:ed)?\b.{0,20}\bcode:? -9\b"
)
_ARRAY = re.compile(
    rf"Unable to allocate (?:array with shape \(([\d, ]*)\) and data type (\w+)"
    rf"|({SIZE}) for an array with shape \(([\d, ]*)\) and data type (\w+))"
)
_NO_ROOM = re.compile(r"MemoryError|std::bad_alloc|Cannot allocate memory|paging file is too small")
_TENTH = re.compile(r"Allocation of (\d+) exceeds \d+% of (?:free )?system memory")
_OTHER_END = re.compile(
    r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|CANCELLED AT|TERM_RUNLIMIT|TERM_OWNER|walltime"
    r"|Segmentation fault",
)
TAIL = re.compile(
    rb"(?m)^.*?(?:killed|\b137\b|code:? -9|signal 9|oom|memory limit|available RAM|exceed|bad_alloc).*$"
)

LANDMARKS = (
    b"Kill",
    b"-kill",
    b"_kill",
    b"SIGKILL",
    b"MemoryError",
    b"OutOfMemory",
    b"OUT_OF_ME",
    b"Out of memory",
    b"Memory cgroup",
    b"Exceeded ",
    b"TERM_",
    b"DUE TO ",
    b"CANCELLED AT",
    b"Segmentation fault",
    b"Unable to allocate",
    b"Cannot allocate memory",
    b"_alloc'",
    b"_alloc ",
    b"_alloc)",
    b"_alloc\n",
    b"Allocation of ",
    b"PBS: ",
    b"The node was low",
    b"The paging file",
    b"The kernel appears",
    b"Kernel died",
    b"Your session",
    b"Your notebook",
)


def recognise(hit: Landmark, facts: Facts) -> None:
    """One line about memory of the host."""
    text = hit.text
    if _TENTH.search(text):
        facts.host_warnings.add(hit.evidence())
    elif _OTHER_END.search(text):
        facts.other_ends.add(hit.evidence())
    elif KILLED_FOR_MEMORY.search(text):
        facts.fail(Failure("kill", hit.evidence(), hit.worker))
    elif "CUDA" in text or "torch" in text:
        return
    elif (array := _ARRAY.search(text)) is not None:
        _array(hit, facts, array)
    elif _NO_ROOM.search(text):
        look_back(hit, facts)
        facts.fail(Failure("host", hit.evidence(), hit.worker, op=op_in(text)))
    elif _KILLED.search(text):
        facts.fail(Failure("killed", hit.evidence(), hit.worker))


def _array(hit: Landmark, facts: Facts, match: re.Match[str]) -> None:
    look_back(hit, facts)
    facts.fail(
        Failure(
            "array",
            hit.evidence(),
            hit.worker,
            requested_bytes=read_size(match[3]),
            shape=read_shape(match[1] or match[4] or ""),
            dtype=match[2] or match[5],
            device="host",
            op=op_in("\n".join(hit.ahead(2048).splitlines()[:6])),
        )
    )
