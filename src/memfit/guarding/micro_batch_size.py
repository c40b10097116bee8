"""The micro-batch: where it starts, how it steps down, when it grows back, and what its steps need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

# A size that failed is tried again only when this much less is in use than when it failed, and twice as much
# each further time. What is in use before a step moves by the batches that a pipeline has ready, the peak of
# a step by up to an eighth of what it may take, and each failure costs TensorFlow's ten seconds.
_LEAST_RELIEF_BYTES = 1 << 20
_LEAST_RELIEF = 0.02  # of what was in use
_LEAST_RELIEF_OF_FREE = 0.125  # of what was free for the step
# A pool that is nearly full hands out tighter pieces, so that a step may need less there than was measured.
_TIGHTER = 0.85
_GROWS = 0.8  # with the micro-batch, where only a smaller one was measured: not all of a step does
_MEASURED = 8  # steps of each size, and then one in so many
_SELDOM = 16


@dataclass(frozen=True)
class _Failure:
    """A size that ran out, with what was in use before the step; None where it is not counted."""

    size: int
    in_use_bytes: int | None


class Needs:
    """The bytes that steps on micro-batches of each size have taken above what was in use before them."""

    def __init__(self) -> None:
        self._least: dict[int, int] = {}
        self._steps: dict[int, int] = {}

    def wants(self, size: int) -> bool:
        """Whether the next step on micro-batches of this size should be measured; counts it."""
        self._steps[size] = self._steps.get(size, 0) + 1
        return self._steps[size] <= _MEASURED or self._steps[size] % _SELDOM == 0

    def note(self, size: int, needed_bytes: int) -> None:
        """Take in what a step has taken."""
        self._least[size] = min(needed_bytes, self._least.get(size, needed_bytes))

    def may_fit(self, size: int, free_bytes: int | None) -> bool:
        """Whether a step of this size could fit into what is free, as far as is known."""
        if free_bytes is None or not self._least:
            return True
        if size in self._least:
            return _TIGHTER * self._least[size] <= free_bytes
        nearest = min(self._least, key=lambda known: abs(known - size))
        return nearest > size or self._least[nearest] * max(1.0, _GROWS * size / nearest) <= free_bytes


class Ladder:
    """The micro-batch size for each batch.

    It halves when a step ran out or would run out, never below one sample, and goes back up the way it came
    when less is in use before a step than when the size above failed.
    """

    def __init__(self, start: int | None = None) -> None:
        self.start = start
        self.needs = Needs()
        self._failures: list[_Failure] = []
        self._times: dict[int, int] = {}  # that each size has failed

    def size_for(self, batch_size: int) -> int:
        """The micro-batch size for a batch: the rung, but not more than the batch has."""
        rung = self._rung()
        return batch_size if rung is None else min(rung, batch_size)

    def _rung(self) -> int | None:
        return -(-self._failures[-1].size // 2) if self._failures else self.start

    def step_down(self, batch_size: int, in_use_bytes: int | None = None) -> int | None:
        """The next smaller size, from now on; None when one sample was too much already."""
        size = self.size_for(batch_size)
        if size == 1:
            return None
        self._failures.append(_Failure(size, in_use_bytes))
        self._times[size] = self._times.get(size, 0) + 1
        return self._rung()

    def step_up(self, in_use_bytes: int | None, free_bytes: int | None = None) -> bool:
        """Go back up one rung if the pressure that led down is gone; whether it did.

        `free_bytes` is what the device could still give.
        """
        if not self._failures or in_use_bytes is None:
            return False
        size, before = self._failures[-1].size, self._failures[-1].in_use_bytes
        if before is None or not self.needs.may_fit(size, free_bytes):
            return False
        free_then = 0 if free_bytes is None else free_bytes + in_use_bytes - before
        relief = max(_LEAST_RELIEF_BYTES, int(_LEAST_RELIEF * before), int(_LEAST_RELIEF_OF_FREE * free_then))
        if in_use_bytes > before - (relief << (self._times.get(size, 1) - 1)):
            return False
        self._failures.pop()
        return True

    def start_at(self, size: int) -> None:
        """Begin at this size, whatever was before."""
        self.start, self._failures = size, []

    def forget_whole(self, batch_size: int) -> None:
        """Say no more where to start if that was to take batches of this size whole: others may be larger."""
        if self.start is not None and self.start >= batch_size:
            self.start = None

    def go_on_as(self, other: Ladder) -> None:
        """Be where another one is."""
        self.start, self._failures = other.start, list(other._failures)

    def to_dict(self) -> dict[str, Any]:
        """The ladder's starting size and its failures, as JSON."""
        return {"start": self.start, "failures": [[one.size, one.in_use_bytes] for one in self._failures]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """A ladder that is where another was."""
        ladder = cls(saved["start"])
        ladder._failures = [_Failure(size, in_use_bytes) for size, in_use_bytes in saved["failures"]]
        return ladder
