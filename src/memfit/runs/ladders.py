"""The micro-batch: where it starts, how it steps down."""

from __future__ import annotations


class Ladder:
    """The micro-batch size for each batch; halves when a step ran out, never below one sample."""

    def __init__(self, start: int | None) -> None:
        self._rung = start

    def size_for(self, batch_size: int) -> int:
        """The micro-batch size for a batch: the rung, but not more than the batch has."""
        return batch_size if self._rung is None else min(self._rung, batch_size)

    def step_down(self, batch_size: int) -> int | None:
        """The next smaller size, from now on; None when one sample was too much already."""
        size = self.size_for(batch_size)
        if size == 1:
            return None
        self._rung = -(-size // 2)
        return self._rung
