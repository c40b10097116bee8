"""The kind of most images of a data set, which graphs try first, since each question takes its time."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from memfit.data.reading.decoding import JPEG, PNG, RATIOS, Decoder

# The first bytes of a PNG file, up to its sides, as numbers of 32 bits with the highest byte first.
PNG_HEADER = struct.unpack(">4i", PNG + b"\r\n\x1a\n\0\0\0\rIHDR")

# Most JPEG files begin with a JFIF segment and a table behind it, where Exif data would have its name.
PLAIN_BYTES = 25
PLAIN_JPEG = re.compile(rb".{6}JFIF.{14}\x00", re.DOTALL)


_MARGIN = 1.25  # how much larger or smaller others may be than those that were looked at


class Usual(NamedTuple):
    """A kind of images that are decoded in the same way."""

    is_png: bool
    ratio: int = 1  # which part of a JPEG's sides is decoded: all, a half, a quarter, an eighth
    is_exact: bool = False  # it has the size that is wanted already
    is_tall: bool = False  # its width is what decides on the ratio

    def bounds(self, decoder: Decoder, most_pixels: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The smallest and largest sides, first height; between them images take that many pixels at most.

        Not all images of this kind are within them, and all within them are of this kind.
        """
        height, width = decoder.height, decoder.width
        if self.is_exact:
            return (height, width), (height, width)
        if self.is_png or self.ratio == RATIOS[-1]:
            largest = most_pixels * self.ratio**2
            tallest = max(1, math.isqrt(largest * height // width))
            low = (1, 1) if self.is_png else (self.ratio * height, self.ratio * width)
            return low, (tallest, largest // tallest)
        low = (1, 1) if self.ratio == 1 else (self.ratio * height, self.ratio * width)
        shorter = 2 * self.ratio * (width if self.is_tall else height) - 1
        longer = most_pixels * self.ratio**2 // shorter
        return low, (longer, shorter) if self.is_tall else (shorter, longer)


class Seen(NamedTuple):
    """One of the images that were looked at: its kind, its sides, and whether its header is a usual one."""

    kind: Usual
    sides: tuple[int, int]  # height and width
    is_plain: bool


@dataclass(frozen=True)
class LookedAt:
    """Some images of a data set: the bytes that each takes, encoded and decoded, and which they are."""

    needed_bytes: tuple[int, ...]
    seen: tuple[Seen | None, ...]

    @property
    def usual(self) -> Usual | None:
        """The kind of most of them."""
        kinds = Counter(one.kind for one in self.seen if one is not None)
        return kinds.most_common(1)[0][0] if kinds else None

    def are_alike(self, low: tuple[int, int], high: tuple[int, int]) -> bool:
        """Whether hardly any image has sides beyond these, or another format or header than most."""
        usual = self.usual
        margin = 1.0 if usual is not None and usual.is_exact else _MARGIN
        return all(
            one is not None
            and one.is_plain
            and one.kind.is_png == (usual is not None and usual.is_png)
            and all(least <= max(1, side / margin) for least, side in zip(low, one.sides, strict=True))
            and all(side * margin <= most for side, most in zip(one.sides, high, strict=True))
            for one in self.seen
        )


def look_at(images: Iterable[bytes], decoder: Decoder) -> LookedAt:
    """The facts about encoded images; those that cannot be decoded are left out."""
    needed, seen = [], []
    for encoded in images:
        with suppress(tf.errors.OpError, ValueError):
            needed.append(len(encoded) + decoder.needed_bytes(encoded))
            seen.append(_seen(encoded, decoder))
    return LookedAt(tuple(needed), tuple(seen))


def _seen(encoded: bytes, decoder: Decoder) -> Seen | None:
    is_png = encoded.startswith(PNG)
    if not (is_png or encoded.startswith(JPEG)):
        return None
    height, width = decoder.sides(encoded)
    is_plain = is_png or PLAIN_JPEG.match(encoded) is not None
    if (height, width) == (decoder.height, decoder.width):
        return Seen(Usual(is_png, is_exact=True), (height, width), is_plain)
    ratio = 1 if is_png else decoder.ratio(height, width)
    is_tall = not is_png and height * decoder.width > width * decoder.height
    return Seen(Usual(is_png, ratio, is_tall=is_tall), (height, width), is_plain)
