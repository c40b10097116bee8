"""Logs as streams: only lines with a landmark are looked at, in windows, so that memory stays flat.

A window keeps some text before and after what is searched, for lines that only mean something together. A
line may be a gigabyte long: then it is cut into pieces, and what is quoted of it is short.
"""

from __future__ import annotations

import codecs
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from memfit.core.errors import InvalidSize
from memfit.core.records import Evidence
from memfit.core.units import dtype_bytes, parse_size

_BLOCK_BYTES = 2**20
_BEHIND_BYTES = _AHEAD_BYTES = 2**15
_LONGEST_LINE = 4096  # that is looked at, before and after a landmark
_LONGEST_LANDMARK = 64
_LONGEST_QUOTE = 300

_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|[IWEF]\d{4} \d\d:\d\d:\d\d")
_WORKER = re.compile(
    r"""\s*(?:
        \[\d+,\d+\](?:<std\w+>)?:?                                                   # mpirun
      | \([\w.@ -]*\bpid=\d+[^)]*\)                                                  # Ray
      | \[?(?:[\w.]*[-_.])?(?:rank|worker|chief|task|ps|trainer|node|host|gpu|replica|evaluator|tpu)
        [-_ :/]?\d+\]?\s*[:|>]                                                       # what people print
      | \d{1,4}:(?=\s)                                                               # srun --label
      | [\w.-]+\s*\|(?=\s)                                                           # docker compose
    )\s?""",
    re.VERBOSE | re.IGNORECASE,
)


def blocks_of(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a stream, as UTF-8 where they begin as UTF-16, which PowerShell writes."""
    first = stream.read(_BLOCK_BYTES)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first
        while block := stream.read(_BLOCK_BYTES):
            yield block
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    block = first
    while block:
        yield decoder.decode(block).encode(errors="replace")
        block = stream.read(_BLOCK_BYTES)


class Landmark:
    """A landmark in a line, and what stands around it."""

    __slots__ = ("__dict__", "_begin", "_end", "_window", "landmark", "line", "raw")

    def __init__(self, landmark: bytes, line: int, raw: bytes, place: tuple[bytes, int, int]) -> None:
        self.landmark, self.line, self.raw = landmark, line, raw
        self._window, self._begin, self._end = place

    @functools.cached_property
    def _parts(self) -> tuple[str, str]:
        text = clean(self.raw)
        prefix = _WORKER.match(text)
        return (prefix[0].strip(), text[prefix.end() :]) if prefix else ("", text)

    @property
    def worker(self) -> str:
        """Which of several processes wrote it, where its line begins with that."""
        return self._parts[0]

    @property
    def text(self) -> str:
        """The line without colours and without the worker's name."""
        return self._parts[1]

    @property
    def following(self) -> str:
        """The next line."""
        return self.ahead(512).lstrip("\r\n").partition("\n")[0]

    def ahead(self, most: int = 2**14) -> str:
        """The text after the line."""
        return clean(self._window[self._end : self._end + most])

    def behind(self, most: int = 2**14) -> str:
        """The text before the line."""
        return clean(self._window[max(0, self._begin - most) : self._begin])

    def evidence(self) -> Evidence:
        """The line as it is quoted."""
        return Evidence(self.line, quoted(clean(self.raw), self.landmark.decode()))


def worker_of(raw: bytes) -> str:
    """The name of a worker at the beginning of a line; most lines begin with a date instead."""
    if raw.startswith(b"20") or (raw[:1] in b"IWEF" and (raw[1:5].isdigit() or raw[1:2] == b" ")):
        return ""
    prefix = _WORKER.match(clean(raw))
    return prefix[0].strip() if prefix else ""


def clean(raw: bytes) -> str:
    """Bytes as text that can be read and shown."""
    text = _COLOURS.sub("", raw.decode(errors="replace"))
    return _UNPRINTABLE.sub(lambda found: "\r" if found[0] == "\r" else " ", text)


def quoted(text: str, landmark: str) -> str:
    """A line for people: from the stamp before the landmark on where other text is stuck to it, and short."""
    at = max(0, text.find(landmark))
    stamps = [stamp.start() for stamp in _STAMP.finditer(text, 0, at)]
    if stamps:
        text = text[stamps[-1] :]
    elif at > _LONGEST_QUOTE // 2:
        text = f"…{text[at - 100 :]}"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 1]}…"


def pattern_of(landmarks: Iterable[bytes]) -> re.Pattern[bytes]:
    """All landmarks in one expression, by common beginnings: five times as fast as a plain list."""
    return re.compile(_branches(sorted(set(landmarks))))


def _branches(words: Iterable[bytes]) -> bytes:
    by_first: dict[bytes, list[bytes]] = defaultdict(list)
    for word in words:
        by_first[word[:1]].append(word[1:])
    branches = []
    for first, rests in by_first.items():
        if b"" in rests:  # the shortest of several that begin alike
            branches.append(re.escape(first))
        elif len(rests) == 1:
            branches.append(re.escape(first + rests[0]))
        else:
            branches.append(re.escape(first) + b"(?:" + _branches(rests) + b")")
    return b"|".join(branches)


class Stretch(NamedTuple):
    """Whole lines without a landmark, between two that have one."""

    window: bytes
    begin: int
    end: int
    line: int  # of the first of them


def find_hits(blocks: Iterable[bytes], pattern: re.Pattern[bytes]) -> Iterator[Landmark | Stretch]:
    """All landmarks of a log in order, each with its line, and what lies between them."""
    window, begin, line = b"", 0, 1
    for block in blocks:
        cut = max(0, begin - _BEHIND_BYTES)
        window, begin = window[cut:] + block, begin - cut
        end = _searchable(window, begin)
        if end > begin:
            yield from _search(window, (begin, end), pattern, line)
            line += window.count(b"\n", begin, end)
            begin = end
    yield from _search(window, (begin, len(window)), pattern, line)


def _searchable(window: bytes, begin: int) -> int:
    """The end of the last line that has enough text after it; anywhere, where lines are too long."""
    end = len(window) - _AHEAD_BYTES
    newline = window.rfind(b"\n", begin, max(begin, end))
    return newline + 1 if newline >= 0 else end


def _search(
    window: bytes, part: tuple[int, int], pattern: re.Pattern[bytes], line: int
) -> Iterator[Landmark | Stretch]:
    begin, end = part
    counted, stop, start = begin, begin, begin
    for match in pattern.finditer(window, begin, min(len(window), end + _LONGEST_LANDMARK)):
        at = match.start()
        if at >= end:
            break
        if at >= stop:
            past = stop
            start, stop = _line_around(window, at)
            if start > past + 1:
                yield Stretch(window, past, start, line + window.count(b"\n", counted, past))
            line += window.count(b"\n", counted, max(counted, start))
            counted = max(counted, start)
        raw = window[start:stop]
        if b"\r" in raw:
            raw = _piece_around(raw, at - start)
        yield Landmark(match[0], line, raw, (window, start, stop))
    if end > stop:
        yield Stretch(window, stop, end, line + window.count(b"\n", counted, stop))


def _line_around(window: bytes, at: int) -> tuple[int, int]:
    lowest = max(0, at - _LONGEST_LINE)
    start = window.rfind(b"\n", lowest, at) + 1 or lowest
    stop = window.find(b"\n", at, at + _LONGEST_LINE)
    return start, stop if stop >= 0 else min(len(window), at + _LONGEST_LINE)


def _piece_around(raw: bytes, at: int) -> bytes:
    """The piece of a line around a landmark, where a progress bar begins the line again and again."""
    start = raw.rfind(b"\r", 0, at) + 1
    stop = raw.find(b"\r", at)
    return raw[start:stop] if stop >= 0 else raw[start:]


SIZE = r"[0-9][0-9.]*\s?(?:bytes|[KMGTP]?i?B|[KMGTP])(?![A-Za-z])"


def read_size(text: str | None) -> int | None:
    """The bytes that a text like 488.28MiB, 1.97G or 2304 bytes stands for."""
    if text is None:
        return None
    try:
        return parse_size(text.rstrip("."), least_bytes=0)
    except InvalidSize:
        return None


def read_shape(text: str) -> tuple[int, ...]:
    """The numbers of a text like 32,64,250,250; without impossible ones."""
    return tuple(int(size) for size in text.replace(" ", "").split(",") if size.isdigit() and len(size) < 16)


def bytes_of_shape(shape: tuple[int, ...], dtype: str | None) -> int | None:
    """The bytes of a tensor."""
    item_bytes = dtype_bytes(dtype) if dtype else None
    return None if item_bytes is None else math.prod(shape) * item_bytes
