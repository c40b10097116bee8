"""Memory that was not there to begin with: taken on the device, or short on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memfit.core.records import Evidence
from memfit.core.units import format_size
from memfit.diagnosing.causes.case import Case, Clue
from memfit.diagnosing.logs.facts import Failure

_SMALL_BYTES = 64 * 2**20
_LITTLE = 0.3  # of what there is: with less of ours in it, others have the rest
_PIPELINE = re.compile(r"(?:^|/|\b)(?:\w*Iterator\w*|\w+DatasetV?\d?)$")


def find_taken(case: Case) -> Iterator[Clue]:
    """The driver or a library found nothing where we hold little."""
    facts, ours = case.facts, case.failed("allocator", "tensor", "copy", "request")
    drivers, handles = case.failed("driver"), case.failed("handle")
    if facts.scarce is not None and (ours or drivers or handles):
        words = "most of the device was taken when training began"
        yield Clue("device_taken", 2.9, words, (facts.scarce,))
    if handles:
        words = "cuDNN or cuBLAS could not start: memory was taken before they could"
        yield Clue("device_taken", 2.85 if not _dumped(case) else 1.2, words, _quotes(handles + drivers))
    elif drivers and not ours:
        yield Clue("device_taken", 2.85, _series(case, drivers), _quotes(drivers))
    elif drivers:
        yield Clue("device_taken", 1.0, _series(case, drivers), _quotes(drivers))
    yield from _collectives(case)
    yield from _others_in_pool(case)
    yield from _second_framework(case)
    yield from _small_program(case)


def _dumped(case: Case) -> bool:
    return case.dump is not None and (case.dump.share or 0) > _LITTLE


def _series(case: Case, drivers: list[Failure]) -> str:
    sizes = [failure.requested_bytes for failure in drivers if failure.requested_bytes]
    if not sizes:
        return "the driver gave no memory at all"
    count = case.facts.count("driver")
    if len(set(sizes)) > 1 and sizes == sorted(sizes, reverse=True):
        return (
            f"the driver refused {count} times, from {format_size(sizes[0])} down to "
            f"{format_size(sizes[-1])}: others hold the device"
        )
    return f"the driver refused {format_size(sizes[-1])}{f' {count} times' if count > 1 else ''}"


def _collectives(case: Case) -> Iterator[Clue]:
    failures = case.failed("collective")
    if failures:
        words = "NCCL found no memory for its buffers: it was taken before NCCL could start"
        strength = 2.85 if not case.failed("allocator", "tensor") else 1.2
        yield Clue("device_taken", strength, words, _quotes(failures))


def _others_in_pool(case: Case) -> Iterator[Clue]:
    """A small request fails although we hold next to nothing, and the limit is not reached."""
    dump, request = case.dump, case.request_bytes
    failures = case.failed("allocator", "tensor", "torch")
    asked = [one for one in failures if one.free_bytes is not None and one.total_bytes]
    if asked and dump is not None:
        last = asked[-1]
        others = (last.total_bytes or 0) - (last.free_bytes or 0) - dump.used_bytes
        if others > 0.5 * (last.total_bytes or 0):
            words = (
                f"others hold {format_size(others)} of the {format_size(last.total_bytes or 0)} on the device"
            )
            yield Clue("device_taken", 2.9, words, (last.evidence,), others)
    if dump is None or dump.whole_bytes is None or not request or not failures:
        return
    room = dump.whole_bytes - (dump.pool_bytes or dump.used_bytes + dump.unused_bytes)
    if room >= request and (dump.share or 0) < _LITTLE and dump.unused_bytes < request:
        words = (
            f"{format_size(request)} failed with only {format_size(dump.used_bytes)} of "
            f"{format_size(dump.whole_bytes)} in use here: the rest was not there to be had"
        )
        yield Clue("device_taken", 2.9, words, (failures[-1].evidence, *case.stats))
    elif dump.whole_bytes < _SMALL_BYTES and request < _SMALL_BYTES and case.failed("driver"):
        words = f"all that there was for this process is {format_size(dump.whole_bytes)}"
        yield Clue("device_taken", 2.9, words, case.stats)


def _second_framework(case: Case) -> Iterator[Clue]:
    """PyTorch and TensorFlow on one device."""
    torch = case.failed("torch")
    if torch and (case.facts.gpus or case.failed("allocator")):
        words = "PyTorch ran out on a device that TensorFlow has taken"
        yield Clue("device_taken", 2.5, words, _quotes(torch))


def _small_program(case: Case) -> Iterator[Clue]:
    """XLA says what its whole program needs: where that is little, it is not what fills a device."""
    layout, request = case.facts.buffers, case.request_bytes
    total = layout.parts.get("total") if layout is not None else None
    if layout is not None and total and total < _SMALL_BYTES and request and request <= total:
        words = f"all that XLA's program needs is {format_size(total)}, and not even that was to be had"
        yield Clue("device_taken", 2.85 if case.dump is None else 1.2, words, (layout.evidence,))


def find_host(case: Case) -> Iterator[Clue]:
    """The kernel, a scheduler, or an array on the host."""
    arrays, kills, killed = case.failed("array", "host"), case.failed("kill"), case.failed("killed")
    device = case.failed("allocator", "tensor", "copy")
    warnings = tuple(case.facts.host_warnings)[-1:]
    if kills:
        words = "the system or a scheduler killed the process for it"
        yield Clue("host_memory", 3.0 if not device else 2.0, words, (*warnings, *_quotes(kills)))
    elif killed and not case.facts.other_ends:
        words = "the process was killed from outside, as systems do then"
        yield Clue("host_memory", 2.9 if not device else 1.5, words, (*warnings, *_quotes(killed)))
    if arrays:
        size = arrays[-1].requested_bytes
        words = f"the host had no {format_size(size)} left" if size else "the host had no memory left"
        strength = 3.0 if not device else 1.5
        yield Clue("host_memory", strength, f"{words} for an array", _quotes(arrays), size)
    elif not (kills or killed):
        yield from _plain_cpu(case, device)
    pinned = [one for one in device if re.search(r"(?:cuda|gpu)_host", one.allocator or "")]
    if pinned:
        words = "memory of the host that is kept for copies to the device was used up"
        yield Clue("host_memory", 2.9, words, _quotes(pinned))


def _plain_cpu(case: Case, device: list[Failure]) -> Iterator[Clue]:
    """TensorFlow on a CPU without a limit of its own, where data pipelines run in any case."""
    failure = case.failure
    if failure is not None and failure.allocator is None and _PIPELINE.search(failure.op or ""):
        words = "a batch of the data pipeline, which is made on the host, found no room"
        yield Clue("host_memory", 2.3, words, (failure.evidence,))
    placed = [one for one in device if one.device]
    on_host = [one for one in placed if one.device == "CPU:0" and "bfc" not in (one.allocator or "")]
    if on_host and len(on_host) == len(placed) and case.dump is None:
        words = "the tensor was for the CPU, whose memory is that of the host"
        yield Clue("host_memory", 1.9, words, _quotes(on_host))


def _quotes(failures: list[Failure]) -> tuple[Evidence, ...]:
    """The first and the last, in the order of the log."""
    quotes = [failure.evidence for failure in failures]
    return tuple(quotes[:1] + quotes[-1:]) if len(quotes) > 1 else tuple(quotes)
