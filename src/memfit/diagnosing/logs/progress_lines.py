"""The progress of training: epochs, steps, memory that scripts print themselves, functions traced again."""

from __future__ import annotations

import re

from memfit.core.records import Evidence
from memfit.diagnosing.logs.facts import Facts, PrintedMemory
from memfit.diagnosing.logs.log_lines import Landmark, read_size

_EPOCH = re.compile(r"Epoch:?\s+\[?(\d{1,9})\b")
_BAR = re.compile(r"(?<![\d/.])(\d{1,9})/(\d{1,9})(?=\s*[\[━=|\x1b]|\s+\S*━)")
_STEP = re.compile(r"\b(?:[Ss]tep|[Ii]ter(?:ation)?|STEP|global_step)\b[\s:=#\[]*(\d{1,9})")
_READING = re.compile(
    r"\b(?:mem(?:ory)?|RSS|rss|VRAM|in use|used|usage|current|peak|bytes_in_use|allocated)\b[^\d\n]{0,24}"
    r"([\d.]{1,16})\s?([KMGT]i?B)\b",
    re.IGNORECASE,
)
_RETRACING = re.compile(r"triggered tf\.function retracing")
_NEAR_LINES = 100  # messages of one failure stand together

LANDMARKS = (b"Epoch ", b"WARNING:tensorflow", b"MiB", b"GiB", b"MB", b"GB")


def recognise(hit: Landmark, facts: Facts) -> None:
    """An epoch, a warning, or a reading."""
    if hit.landmark == b"Epoch ":
        epoch = _EPOCH.search(hit.text)
        if epoch is not None:
            facts.progress.epoch = int(epoch[1])
    elif hit.landmark == b"WARNING:tensorflow":
        if _RETRACING.search(hit.text):
            facts.retraces.add(hit.evidence())
    elif b"llocator" not in hit.raw:
        _reading(hit, facts)


def _reading(hit: Landmark, facts: Facts) -> None:
    match = _READING.search(hit.text)
    size = None if match is None else read_size(f"{match[1]}{match[2]}")
    if size is None:
        return
    last = facts.readings.last
    facts.rising = facts.rising + 1 if last is not None and size > last.size_bytes else 0
    facts.readings.add(PrintedMemory(size, hit.evidence()))


def look_back(hit: Landmark, facts: Facts) -> None:
    """The last step before a failure, from whatever bar or line came before it."""
    progress = facts.progress
    if hit.line - progress.looked_line < _NEAR_LINES:
        return
    progress.looked_line = hit.line
    text = hit.behind(2**11) + hit.raw.decode(errors="replace")
    bars, steps = list(_BAR.finditer(text)), list(_STEP.finditer(text))
    if bars and (not steps or bars[-1].start() > steps[-1].start()):
        step, total = int(bars[-1][1]), int(bars[-1][2])
        if step <= total:
            progress.step, progress.steps = step, total
            progress.evidence = _evidence(hit, text, bars[-1])
    elif steps:
        progress.step, progress.steps = int(steps[-1][1]), None
        progress.evidence = _evidence(hit, text, steps[-1])


def _evidence(hit: Landmark, text: str, match: re.Match[str]) -> Evidence:
    line = hit.line - text.count("\n", match.start())
    begin = max(text.rfind("\n", 0, match.start()), text.rfind("\r", 0, match.start())) + 1
    end = re.search(r"[\r\n]|$", text[match.end() :])
    stop = match.end() + (end.start() if end else 0)
    return Evidence(
        line, " ".join(text[max(begin, match.start() - 80) : min(stop, match.end() + 160)].split())
    )
