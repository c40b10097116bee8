"""Bars made of characters, an eighth of a column fine."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LOWER = " ▁▂▃▄▅▆▇█"


def bar(value: float, full: float, width: int) -> str:
    """A bar for `value` that is `width` columns long at `full`; longer values are cut off.

    >>> bar(3, 4, 8)
    '██████'
    """
    if not full > 0 or not value > 0:
        return ""
    eighths = round(min(value / full, 1) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def columns(values: Sequence[float], full: float, height: int) -> list[str]:
    """Values side by side as columns of blocks, the topmost row first.

    >>> columns([1, 2, 4, 8], 8, 2)
    ['   █', '▂▄██']
    """
    eighths = [round(8 * height * value / full) for value in values]
    return [
        "".join(_LOWER[min(8, max(0, value - 8 * row))] for value in eighths).rstrip()
        for row in reversed(range(height))
    ]
