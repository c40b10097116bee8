"""The micro-batch: where it starts, how it steps down, when it grows back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

# A size that failed is tried again only when this much less is in use than when it failed. The peak of a
# step moves by several per cent by itself, and each failure costs TensorFlow's ten seconds.
_LEAST_RELIEF_BYTES = 1 << 20
_LEAST_RELIEF = 0.02


@dataclass(frozen=True)
class _Failure:
    """A size that ran out, with what was in use before the step; None where nobody counts."""

    size: int
    in_use_bytes: int | None


class Ladder:
    """The micro-batch size for each batch.

    It halves when a step ran out, never below one sample, and goes back up the way it came when less is
    in use before a step than when the size above failed.
    """

    def __init__(self, start: int | None = None) -> None:
        self.start = start
        self._failures: list[_Failure] = []

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
        return self._rung()

    def step_up(self, in_use_bytes: int | None) -> bool:
        """Go back up one rung if the pressure that led down is gone; whether it did."""
        if not self._failures or in_use_bytes is None:
            return False
        before = self._failures[-1].in_use_bytes
        if before is None or in_use_bytes > before - max(_LEAST_RELIEF_BYTES, int(_LEAST_RELIEF * before)):
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
        """Where it is, as JSON."""
        return {"start": self.start, "failures": [[one.size, one.in_use_bytes] for one in self._failures]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """A ladder that is where another was."""
        ladder = cls(saved["start"])
        ladder._failures = [_Failure(size, in_use_bytes) for size, in_use_bytes in saved["failures"]]
        return ladder
