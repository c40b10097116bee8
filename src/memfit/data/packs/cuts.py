"""In which order elements are packed, and where one shard ends and the next begins: plain arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memfit.data.packs.options import Settings

Numbers = npt.NDArray[np.int64]

_STEP = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)


def order_of(length: int, settings: Settings) -> Numbers:
    """The order of elements: shuffled, it is the same on every machine and with every version of NumPy."""
    if not settings.shuffle:
        return np.arange(length, dtype=np.int64)
    # Numbers as random as their place, by the steps of SplitMix64; sorting them shuffles the places.
    keys = np.arange(1, length + 1, dtype=np.uint64) + np.uint64(settings.seed * 2**32 % 2**64)
    keys *= np.uint64(_STEP)
    for shift, mixer in _MIXERS:
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(mixer)
    return np.argsort(keys ^ (keys >> _LAST_SHIFT), kind="stable").astype(np.int64)


def cut(sizes: Numbers, settings: Settings) -> tuple[int, ...]:
    """How many elements each shard gets, so that shards are about as large; none is empty."""
    ends = np.cumsum(sizes)
    total, length = int(ends[-1]), len(sizes)
    count = min(length, settings.shards or max(1, -(-total // settings.shard_bytes)))
    steps = np.arange(1, count)
    begins = np.searchsorted(ends, total / count * steps, side="right")
    begins = np.maximum.accumulate(np.maximum(begins, 1) - steps) + steps
    begins = np.minimum(begins, length - count + steps)
    return tuple(np.diff(np.concatenate([[0], begins, [length]])).tolist())
