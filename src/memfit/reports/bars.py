"""Bars made of characters, an eighth of a column fine."""

from __future__ import annotations

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, full: float, width: int) -> str:
    """A bar for `value` that is `width` columns long at `full`; longer values are cut off.

    >>> bar(3, 4, 8)
    '██████'
    """
    if not full > 0 or not value > 0:
        return ""
    eighths = round(min(value / full, 1) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
