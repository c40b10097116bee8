"""A verdict in one sentence, and what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.diagnoses.causes.cases import Case
from memfit.diagnoses.causes.verdicts import Verdict
from memfit.records import Cause, Evidence
from memfit.units import format_size

_OPENINGS: dict[Cause, str] = {
    "activations": "A step needs more memory than there is",
    "weights": "Weights and optimizer need more memory than there is",
    "data_on_device": "Data fills the device",
    "fragmentation": "Free memory is in too many pieces",
    "device_taken": "The device was taken before training could have it",
    "host_memory": "The host ran out of memory, not a device",
    "leak": "Something keeps memory from step to step",
    "one_replica": "One device ran out while others did not",
}


def summarise(verdict: Verdict, case: Case) -> str:
    """What happened, in one sentence with numbers."""
    if verdict.cause == "not_an_oom":
        return _other_end(case)
    if verdict.main is None:
        return _unsure(case)
    return f"{_OPENINGS[verdict.cause]}: {verdict.main.words}{_last_straw(verdict, case)}."


def _last_straw(verdict: Verdict, case: Case) -> str:
    """Who asked in the end, where the cause is another; how full it was, where it is that."""
    failure, dump = case.failure, case.dump
    if verdict.cause == "activations" and dump is not None and dump.whole_bytes and failure is not None:
        return f" with {format_size(dump.used_bytes)} of {format_size(dump.whole_bytes)} in use"
    if verdict.cause not in ("data_on_device", "leak", "one_replica") or failure is None:
        return ""
    if failure.requested_bytes is None or not failure.op or _is_said(verdict, case):
        return ""
    then = ", where" if verdict.cause == "one_replica" else "; then"
    return f"{then} {failure.op} asked for {format_size(failure.requested_bytes)}"


def _is_said(verdict: Verdict, case: Case) -> bool:
    """Whether the cause is what the failing op did."""
    main = verdict.main
    return main is not None and main.bytes_at_stake is not None and main.bytes_at_stake == case.request_bytes


def _other_end(case: Case) -> str:
    facts = case.facts
    ended = [one for one in facts.tracebacks if one.error is not None]
    if facts.other_ends and facts.other_ends.last is not None:
        return f"Memory is not what ended it: {_said(facts.other_ends.last)}."
    if ended and ended[-1].error is not None:
        return f"Memory did not run out; it ended with {_said(ended[-1].error)}."
    if facts.warnings or facts.host_warnings:
        count = facts.warnings.count + facts.host_warnings.count
        return (
            f"Memory did not run out: {count} warnings say that it is scarce, and none that anything failed."
        )
    return f"Nothing in these {facts.lines + 1:,} lines says that memory ran out."


def _said(quote: Evidence) -> str:
    return quote.text[:160].rstrip(". ")


def _unsure(case: Case) -> str:
    if case.facts.size_bytes == 0:
        return "The log is empty, so nothing is known."
    if case.facts.is_binary:
        return f"These {case.facts.size_bytes:,} bytes are not text, and nothing in them is known."
    failure = case.failure
    if set(case.facts.failures) == {"unclear"}:
        return f"A library failed, maybe for want of memory: {_said(case.failed('unclear')[-1].evidence)}."
    what = f" ({_said(failure.evidence)})" if failure else ""
    return f"Memory ran out{what}, but the log does not say what it was filled with."


def left_open(verdict: Verdict, case: Case) -> Iterator[str]:
    """What the log does not say."""
    if verdict.cause in ("not_an_oom", "unknown") and not case.facts.failures:
        if case.facts.is_binary:
            yield "most of it is not text"
        return
    on_device = case.failed("allocator", "tensor", "copy", "request")
    if on_device and case.dump is None and case.facts.buffers is None:
        yield "the log has no dump of the allocator, so what filled the memory is inferred from the op alone"
    if case.failed("killed") and not case.failed("kill"):
        yield "nobody says who killed the process; that it was for memory is the likeliest reason"
    if case.facts.count("allocator") > 1:
        yield f"it ran out {case.facts.count('allocator')} times; this is about the last"
    if case.source is None and on_device:
        yield "there is no traceback with a line of your own code"
