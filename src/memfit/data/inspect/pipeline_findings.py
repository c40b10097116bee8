"""The memory that a pipeline holds, as records: found by `check`, or explained by `explain`."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.serialization import Record
from memfit.core.units import format_size

_WORTH_A_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that takes memory; how much may be unknown."""

    kind: str  # shuffle, cache, prefetch, parallel, interleave, batch, window, array, constant, python, …
    place: int  # of the transformation, counted from the source, which is 1
    transformation: str
    held_bytes: int | None  # while data flows; None where it is not known
    most_bytes: int | None  # at the worst moment; None where nothing bounds it
    sentence: str
    fix: str

    @property
    def where(self) -> str:
        """Which transformation it is."""
        return f"{self.place}. {self.transformation}"

    def __str__(self) -> str:
        held = "not known" if self.held_bytes is None else format_size(self.held_bytes)
        lines = [f"{self.where}: {held}. {self.sentence}"]
        return "\n".join([*lines, f"  Try: {self.fix}"] if self.fix else lines)


@dataclass(frozen=True)
class Check(Record):
    """The memory that a pipeline will hold, as findings from its source to its end."""

    findings: tuple[Finding, ...]
    looked_at: int = 0  # elements that were made to see how large they are

    @property
    def total_bytes(self) -> int:
        """The sum of the bytes that are known to be held."""
        return sum(finding.held_bytes or 0 for finding in self.findings)

    @property
    def most_bytes(self) -> int | None:
        """The same at the worst moment; None where nothing bounds it."""
        most = [finding.most_bytes for finding in self.findings]
        return None if None in most else sum(size or 0 for size in most)

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """Things that take an unknown amount of memory."""
        return tuple(finding for finding in self.findings if finding.held_bytes is None)

    def __str__(self) -> str:
        listed = sorted(filter(_is_worth_a_line, self.findings), key=_largest_first)
        lines = [line for finding in listed for line in str(finding).splitlines()]
        small = [finding.held_bytes or 0 for finding in self.findings if finding not in listed]
        if small:
            lines.append(f"{_things(len(small))} below 1 MiB, together {format_size(sum(small))}.")
        return "\n".join([self._headline(), *(f"  {line}" for line in lines)])

    def _headline(self) -> str:
        most = self.most_bytes
        words = f"This pipeline holds about {format_size(self.total_bytes)}"
        if most is None and not self.unknown:
            words += ", and nothing bounds it"
        elif most is not None and most > 1.1 * self.total_bytes:
            words += f", at most {format_size(most)}"
        if self.unknown:
            words += f"; {_things(len(self.unknown))} more cannot be known"
        return f"{words}."


def _is_worth_a_line(finding: Finding) -> bool:
    sizes = (finding.held_bytes, finding.most_bytes)
    return None in sizes or max(size or 0 for size in sizes) >= _WORTH_A_LINE_BYTES


def _largest_first(finding: Finding) -> tuple[int, int]:
    return -max(finding.held_bytes or 0, finding.most_bytes or 0), finding.place


def _things(count: int) -> str:
    return "1 thing" if count == 1 else f"{count} things"


@dataclass(frozen=True)
class Part:
    """A part of a stream's RAM."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Explanation(Record):
    """The choices that memfit has made for one of its own streams, and the reasons."""

    source: str
    elements: int | None
    element_bytes: int
    batch_size: int | None
    ram_bytes: int
    parts: tuple[Part, ...]
    parallel: int  # threads that read and decode
    prefetch: int  # batches that wait
    window: int  # elements that are shuffled among each other, where that is bounded by memory
    reasons: tuple[str, ...]
    order: str
    start: int
    on_error: str
    skipped: int
    listed: tuple[str, ...]  # some of what was skipped, and why
    above: tuple[Finding, ...]  # what the user has put on top

    @property
    def total_bytes(self) -> int:
        """The bytes that all parts of the stream take at most."""
        return sum(part.size_bytes for part in self.parts)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *(f"  {line}" for line in self._lines())])

    def _headline(self) -> str:
        count = "elements" if self.elements is None else f"{self.elements:,} elements"
        batches = "one by one" if self.batch_size is None else f"in batches of {self.batch_size}"
        size = format_size(self.element_bytes)
        return f"A stream of {count} of {size} from {self.source}, {batches}."

    def _lines(self) -> list[str]:
        lines = [f"It takes at most {format_size(self.total_bytes)} of ram={format_size(self.ram_bytes)}:"]
        parts = sorted(self.parts, key=lambda part: -part.size_bytes)
        lines += [f"  {format_size(part.size_bytes):>10}  {part.name}" for part in parts]
        lines += self.reasons
        lines.append(f"Order: {self.order}.")
        if self.start:
            lines.append(f"It begins after {self.start:,} elements that were used before.")
        return lines + self._skipped() + self._above()

    def _skipped(self) -> list[str]:
        if self.on_error == "raise":
            return ["An element that cannot be read ends the training."]
        words = f"Elements that cannot be read are left out, {self.skipped:,} so far"
        more = self.skipped - len(self.listed)
        listed = [f"  {found}" for found in self.listed] + ([f"  … and {more:,} more"] if more > 0 else [])
        return [f"{words}{':' if listed else '.'}", *listed]

    def _above(self) -> list[str]:
        found = [line for finding in self.above for line in str(finding).splitlines()]
        return ["What was put on top of it holds more:", *(f"  {line}" for line in found)] if found else []
