"""Encoded images -> tensors of one size, with TensorFlow's own operations, decoding no more than it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memfit.data.sources import Spec

_RATIOS = (1, 2, 4, 8)
_ORIENTATION = 0x0112
# Where Exif begins, if it is there: a camera writes it first, an editor behind a JFIF segment of 18 bytes.
_EXIF_PLACES = (6, 24)
_HEADER_BYTES = 2048


@dataclass(frozen=True)
class Decoder:
    """What images shall become."""

    height: int
    width: int
    channels: int
    dtype: tf.DType

    @property
    def spec(self) -> Spec:
        """Type and shape of what comes out."""
        return Spec(self.dtype, (self.height, self.width, self.channels))

    def __call__(self, encoded: Any) -> Any:
        """In a graph: one encoded image, as it shall be."""
        image = tf.cond(
            _is_jpeg(encoded), lambda: self._decoded_jpeg(encoded), lambda: self._decoded(encoded)
        )
        return self._resized(image)

    def needed_bytes(self, encoded: Any) -> Any:
        """In a graph: what an image takes while it is decoded; 0 for kinds that do not say it up front."""
        begin = tf.strings.substr(encoded, 0, 4)
        is_png = tf.logical_and(tf.equal(begin, b"\x89PNG"), tf.strings.length(encoded) >= 24)
        pixels = tf.case(
            [
                (_is_jpeg(encoded), lambda: self._jpeg_pixels(encoded)),
                (is_png, lambda: _png_pixels(encoded)),
            ],
            default=lambda: tf.constant(0, tf.int64),
        )
        return pixels * self.channels

    def _jpeg_pixels(self, encoded: Any) -> Any:
        shape = tf.image.extract_jpeg_shape(encoded)
        ratio = tf.gather(tf.constant(_RATIOS, tf.int64), self._ratio(shape, tf.constant(1)))
        return tf.reduce_prod(tf.cast(shape[:2], tf.int64)) // (ratio * ratio)

    def _ratio(self, shape: Any, turns: Any) -> Any:
        """Which of the ratios is the largest that leaves an image no smaller than it shall be."""
        is_lying = turns >= 5
        height = tf.where(is_lying, self.width, self.height)
        width = tf.where(is_lying, self.height, self.width)
        spare = tf.minimum(shape[0] // height, shape[1] // width)
        return tf.reduce_sum(tf.cast(spare >= tf.constant(_RATIOS[1:]), tf.int32))

    def _decoded_jpeg(self, encoded: Any) -> Any:
        shape, turns = tf.image.extract_jpeg_shape(encoded), _orientation(encoded)
        ratio = self._ratio(shape, turns)
        if self.channels == 3:
            image = _at_ratio(encoded, ratio, 3)
        elif self.channels == 4:
            image = self._with_channels(_at_ratio(encoded, ratio, 3))
        else:
            # The library makes no grey image of one for print, with its four colours.
            image = tf.cond(
                tf.equal(shape[2], 4),
                lambda: self._with_channels(_at_ratio(encoded, ratio, 3)),
                lambda: _at_ratio(encoded, ratio, 1),
            )
        return tf.cond(tf.equal(turns, 1), lambda: image, lambda: _turned(image, turns))

    def _decoded(self, encoded: Any) -> Any:
        is_png = tf.equal(tf.strings.substr(encoded, 0, 4), b"\x89PNG")
        return tf.cond(
            is_png,
            lambda: tf.io.decode_png(encoded, channels=self.channels),
            lambda: self._with_channels(tf.io.decode_image(encoded, expand_animations=False)),
        )

    def _with_channels(self, image: Any) -> Any:
        """Grey, coloured or with transparency, as it may be, with the channels wanted."""
        found = tf.shape(image)[2]
        if self.channels == 4:
            opaque = tf.fill(tf.concat([tf.shape(image)[:2], [1]], 0), tf.constant(255, tf.uint8))
            return tf.cond(
                tf.equal(found, 4), lambda: image, lambda: tf.concat([_coloured(image), opaque], axis=2)
            )
        coloured = _coloured(image)
        return coloured if self.channels == 3 else tf.image.rgb_to_grayscale(coloured)

    def _resized(self, image: Any) -> Any:
        size = (self.height, self.width)
        is_right = tf.reduce_all(tf.equal(tf.shape(image)[:2], size))
        image = tf.cond(is_right, lambda: self._cast(image), lambda: self._cast(tf.image.resize(image, size)))
        return tf.ensure_shape(image, (*size, self.channels))

    def _cast(self, image: Any) -> Any:
        if self.dtype == tf.uint8 and image.dtype != tf.uint8:
            image = tf.round(image)  # a mean of bytes is never outside of their range
        return tf.cast(image, self.dtype)


def _is_jpeg(encoded: Any) -> Any:
    return tf.equal(tf.strings.substr(encoded, 0, 3), b"\xff\xd8\xff")


def _at_ratio(encoded: Any, ratio: Any, channels: int) -> Any:
    # The libraries decode to a half, a quarter or an eighth for much less work and memory.
    return tf.switch_case(
        ratio,
        [lambda part=part: tf.io.decode_jpeg(encoded, channels=channels, ratio=part) for part in _RATIOS],
    )


def _png_pixels(encoded: Any) -> Any:
    """Width times height, from the first block of a PNG file."""
    sides = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)
    return tf.reduce_prod(tf.cast(sides, tf.int64))


def _coloured(image: Any) -> Any:
    """Three channels of one, two or more."""
    return tf.cond(
        tf.shape(image)[2] < 3, lambda: tf.repeat(image[:, :, :1], 3, axis=2), lambda: image[:, :, :3]
    )


def _orientation(encoded: Any) -> Any:
    """How a camera was held, by its Exif data: 1 is upright, 5 to 8 lie on their sides."""
    header = tf.strings.substr(encoded, 0, 32)
    places = [tf.equal(tf.strings.substr(header, place, 4), b"Exif") for place in _EXIF_PLACES]
    return tf.cond(
        tf.logical_or(*places),
        lambda: _exif_orientation(encoded, tf.where(places[0], *_EXIF_PLACES) + 6),
        lambda: tf.constant(1),
    )


def _exif_orientation(encoded: Any, begin: Any) -> Any:
    """The orientation in the first directory of a TIFF structure that begins there."""
    text = tf.strings.substr(encoded, begin, _HEADER_BYTES)
    is_large_end = tf.equal(tf.strings.substr(text, 0, 2), b"MM")
    data = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)
    data = tf.concat([data, tf.zeros([16], tf.int32)], axis=0)
    last = tf.size(data) - 4

    def number(at: Any) -> Any:
        at = tf.clip_by_value(at, 0, last)
        return tf.where(is_large_end, data[at] * 256 + data[at + 1], data[at + 1] * 256 + data[at])

    directory = number(tf.where(is_large_end, 6, 4))  # no camera puts it beyond 64 KiB
    count = tf.minimum(number(directory), 64)
    entries = directory + 2 + 12 * tf.range(count)
    entries = tf.clip_by_value(entries, 0, last - 8)
    tags = tf.map_fn(number, entries)
    values = tf.map_fn(lambda entry: number(entry + 8), entries)
    found = tf.reduce_max(tf.where(tf.equal(tags, _ORIENTATION), values, 1))
    return tf.where(tf.logical_and(found >= 1, found <= 8), found, 1)


def _turned(image: Any, orientation: Any) -> Any:
    """An image as it was seen."""
    lying = orientation >= 5
    image = tf.cond(lying, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
    is_mirrored = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    is_upside_down = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    image = tf.cond(is_mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.cond(is_upside_down, lambda: tf.reverse(image, [0]), lambda: image)
