"""Sizes as messages write them."""

from __future__ import annotations

import math

from memfit.errors import InvalidSize
from memfit.units import dtype_bytes, parse_size

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
    """The numbers of a text like 32,64,250,250; none that nobody could mean."""
    return tuple(int(size) for size in text.replace(" ", "").split(",") if size.isdigit() and len(size) < 16)


def bytes_of_shape(shape: tuple[int, ...], dtype: str | None) -> int | None:
    """The bytes of a tensor."""
    item_bytes = dtype_bytes(dtype) if dtype else None
    return None if item_bytes is None else math.prod(shape) * item_bytes
