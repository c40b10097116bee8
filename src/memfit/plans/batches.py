"""The largest batch that fits, from few estimates: each takes seconds."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 2**30
_LEAP = 16  # how much further than the largest known size the first guesses go at most


def largest_batch_size(needed_bytes: Callable[[int], int], budget_bytes: int, *, most: int = _MOST) -> int:
    """The largest batch size, up to `most`, that the budget is enough for; 0 where it is not even for 1.

    Memory is taken to grow with the batch, all but evenly. The size that is returned fits and the next one
    does not, also where it does not quite.

    >>> largest_batch_size(lambda size: 100 + 7 * size, budget_bytes=1000)
    128
    """
    known: dict[int, int] = {}
    low, high, size = 0, most + 1, 1
    while high - low > 1:
        known[size] = needed_bytes(size)
        if known[size] <= budget_bytes:
            low = size
        else:
            high = size
        size = _next(known, low, high, budget_bytes)
    return low


def _next(known: dict[int, int], low: int, high: int, budget_bytes: int) -> int:
    """On the line through the two nearest sizes; now and then in the middle, which always comes to an end."""
    if len(known) == 1 or (high in known and len(known) % 3 == 0):
        guess = 2 * low if high not in known else (low + high) // 2
    else:
        other = high if high in known else max(size for size in known if size < low)
        bytes_per_sample = (known[other] - known[low]) / (other - low)
        room = budget_bytes - known[low]
        guess = low + int(room / bytes_per_sample) if bytes_per_sample > 0 else high
        if high not in known:
            guess = min(max(guess, 2 * low), _LEAP * low)
    return min(max(guess, low + 1), high - 1)
