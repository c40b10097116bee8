"""Spans [start, stop) of positions, nested ones inside others."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def outermost(spans: Sequence[Span], within: Span) -> list[Span]:
    """The spans strictly inside another one that are in no third."""
    inside = [span for span in spans if span != within and contains(within, span)]
    return [span for span in inside if not any(o != span and contains(o, span) for o in inside)]


def contains(outer: Span, inner: Span) -> bool:
    """Whether a span lies inside another one, or is it."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]
