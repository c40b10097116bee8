"""Numbers of samples, as users give them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import SupportsIndex

from memfit.errors import InvalidMicroBatchSize, MemfitError


def checked_micro_batch_size(size: SupportsIndex | None) -> int | None:
    """The size of a micro-batch, or an error; None where none is given."""
    return None if size is None else checked_samples(size, InvalidMicroBatchSize)


def checked_samples(size: SupportsIndex, error: Callable[[object], MemfitError]) -> int:
    """A number of samples, or an error."""
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or number < 1:
        raise error(size)
    return number
