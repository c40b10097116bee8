"""XLA: how it has laid out memory when that was too much, on GPUs and on TPUs."""

from __future__ import annotations

import re
from pathlib import PurePath

from memfit.diagnosing.logs.facts import Facts, Failure, XlaBuffer, XlaBuffers
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, read_size
from memfit.diagnosing.logs.progress_lines import look_back

_PART = re.compile(rf"(parameter|constant|maybe_live_out|preallocated temp|total) allocation:\s+({SIZE})")
_HBM_PART = re.compile(rf"\b(reserved|program|arguments|total hbm usage >=)\s+({SIZE})", re.IGNORECASE)
_BUFFER = re.compile(rf"(?:Buffer \d+:|\d+\.)\s+(?:\S+\s+)?Size:\s*({SIZE})(.*?)={{10,}}", re.DOTALL)
_SHAPE = re.compile(r"(?:Shape|Entry Parameter Subshape):\s*([^\s{]+)")
_OPERATOR = re.compile(r'op_name="([^"]*)"')
_SOURCE = re.compile(r'source_file="([^"]+)"\s+source_line=(\d+)')
_HBM = re.compile(
    rf"[Rr]an out of memory in memory space (\w+)\.?\s*(?:Used ({SIZE}) of ({SIZE}) \w+)?"
    rf"|Attempting to (?:reserve|allocate) ({SIZE})[^.]*\. That was not possible\. There are ({SIZE}) free"
)
_MOST_BUFFERS = 64

LANDMARKS = (
    b"BufferAssignment stats",
    b"Peak buffers",
    b"Ran out of memory in memory",
    b"Attempting to reserve",
    b"Attempting to allocate",
)


def recognise(hit: Landmark, facts: Facts) -> None:
    """A layout, or a TPU that has run out."""
    if (tpu := _HBM.search(hit.text)) is not None:
        _hbm(hit, facts, tpu)
        return
    text = hit.text + hit.ahead(2**15)
    parts = {name: size for name, found in _PART.findall(text) if (size := read_size(found)) is not None}
    _keep(hit, facts, parts, text)


def _hbm(hit: Landmark, facts: Facts, match: re.Match[str]) -> None:
    text = hit.ahead(2**15)
    used, there = read_size(match[2]), read_size(match[3])
    requested = used if used is not None else read_size(match[4])
    look_back(hit, facts)
    failure = Failure(
        "tpu",
        hit.evidence(),
        hit.worker,
        requested_bytes=requested,
        device="TPU",
        allocator=match[1] or "hbm",
        free_bytes=read_size(match[5]),
        total_bytes=there,
    )
    facts.fail(failure)
    parts = {name.lower(): size for name, found in _HBM_PART.findall(text) if (size := read_size(found))}
    named = {"program": "preallocated temp", "arguments": "parameter", "total hbm usage >=": "total"}
    _keep(hit, facts, {named.get(name, name): size for name, size in parts.items()}, text)


def _keep(hit: Landmark, facts: Facts, parts: dict[str, int], text: str) -> None:
    found = [_buffer(size, about) for size, about in _BUFFER.findall(text)[:_MOST_BUFFERS]]
    if parts or found:
        before = facts.buffers
        if before is not None and len(before.buffers) > len(found) and hit.landmark == b"Peak buffers":
            return
        facts.buffers = XlaBuffers(hit.evidence(), parts or (before.parts if before else {}), tuple(found))


def _buffer(size: str, about: str) -> XlaBuffer:
    shape, op, source = _SHAPE.search(about), _OPERATOR.search(about), _SOURCE.search(about)
    return XlaBuffer(
        read_size(size) or 0,
        shape[1] if shape else None,
        op[1] if op else None,
        f"{PurePath(source[1]).name}:{source[2]}" if source else None,
        "Entry Parameter" in about or "HLO argument" in about or "Allocation type: argument" in about,
    )
