"""The room that a guard makes sure of before a kernel that would end the process where it finds none.

The guard takes these pieces on the device, and the simulator takes them in its model of the pool. Both let
loops run a few turns at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Of a loop that begin before the first of them has ended. Each holds gradients of weights and what else it
# has begun, so that with Keras' 32 small micro-batches of an LSTM take up to twice the memory; four turns
# are about as fast as 32. A loop that runs out goes on with all that it has begun, and each operation waits
# for ten seconds.
TURNS_AT_ONCE = 4

# For scratch: a quarter of the output, but not more than so many numbers, and some numbers in any case. The
# most that was seen in 2,100 kernels of eight models were 26 thousand.
_MOST_SCRATCH, _SCRATCH = 1 << 18, 1 << 16
_SMALL = 1 << 14


def pieces_of_room(
    count: Any,
    filter_count: int,
    *,
    outputs: int,
    is_half: bool = False,
    smaller: Callable[[Any, int], Any] = min,
    larger: Callable[[Any, int], Any] = max,
) -> list[Any]:
    """The sizes of the pieces that have to be free at once, in numbers, the small ones first.

    `count` is the size of one output; for one that is only known when a graph runs, `smaller` and `larger`
    are operations of that graph. Numbers of 16 bits are rearranged, and a filter may be.

    >>> pieces_of_room(1 << 20, 432, outputs=1)
    [65536, 327680, 1048576]
    """
    if isinstance(count, int) and count <= _SMALL:
        return [count + larger(count, filter_count) + _SCRATCH]
    scratch = larger(smaller(count // 4, _MOST_SCRATCH), filter_count) + _SCRATCH
    return [_SCRATCH, scratch + 3 * count if is_half else scratch, *[count] * outputs]
