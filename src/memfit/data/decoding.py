"""Encoded images -> tensors of one size, with TensorFlow's own operations, decoding no more than it takes.

There are two ways to the same result. In a graph, upright JPEG and PNG files of ordinary size are decoded at
once; a graph that could do everything would take longer to begin with, and with every image, than many images
take. All else is decoded by Python code that calls TensorFlow's operations one by one.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.data.sources import Array, Spec

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG"
_RATIOS = (1, 2, 4, 8)
_FOR_PNG, _APART = len(_RATIOS), len(_RATIOS) + 1

# Exif data begin right behind the file's first mark, or behind a JFIF segment of 18 bytes, with the first
# directory in them. An orientation other than upright is one number of 16 bits there, in either byte order.
_EXIF_BYTES = 2048
_ORIENTATION = 0x0112
# Most JPEG files begin with a JFIF segment and a table behind it, where Exif data would have its name.
_IS_PLAIN = r"\C{6}JFIF\C{14}\x00\C*"
_IS_TURNED = (
    r"\C*(?:\x12\x01\x03\x00\x01\x00\x00\x00[\x02-\x08]\x00"
    r"|\x01\x12\x00\x03\x00\x00\x00\x01\x00[\x02-\x08])\C*"
)


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

    def __call__(self, encoded: bytes) -> Any:
        """One encoded image of any kind, as it shall be."""
        if encoded.startswith(_JPEG):
            image = self._upright_jpeg(encoded)
        elif encoded.startswith(_PNG):
            image = tf.io.decode_png(encoded, channels=self.channels)
        else:
            image = self._with_channels(tf.io.decode_image(encoded, expand_animations=False).numpy())
        return self._resized(image)

    def needed_bytes(self, encoded: bytes) -> int:
        """What an image takes while it is decoded; 0 for kinds that do not say it up front."""
        if encoded.startswith(_JPEG):
            height, width, _ = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
            ratio = _RATIOS[int(self._ratio(height, width))]
            return int(height * width * self.channels // ratio**2)
        if encoded.startswith(_PNG) and len(encoded) >= 24:
            width, height = struct.unpack(">II", encoded[16:24])
            return int(height * width * self.channels)
        return 0

    def in_graph(self, apart: Callable[[Any], Any], share_bytes: int) -> Callable[[Any], Any]:
        """In a graph: images that take no more than their share at once, all else with another function."""

        def any_image(encoded: Any) -> Any:
            branches = [functools.partial(self._at_ratio, encoded, ratio) for ratio in _RATIOS]
            branches.append(functools.partial(self._png, encoded))
            branches.append(functools.partial(apart, encoded))
            return tf.switch_case(self._branch(encoded, share_bytes), branches)

        # TensorFlow walks through branches that are not taken, operation by operation. As a function that is
        # called, they are one.
        other = tf.function(any_image, autograph=False, experimental_attributes={"_noinline": True})

        def decode(encoded: Any) -> Any:
            image = tf.cond(
                tf.strings.regex_full_match(encoded, _IS_PLAIN),
                lambda: self._plain(encoded, other),
                lambda: other(encoded),
            )
            return tf.ensure_shape(image, self.spec.shape)

        return decode if self.channels < 4 else other

    def _plain(self, encoded: Any, other: Callable[[Any], Any]) -> Any:
        """A JPEG that stands upright: if it has the right size already, there is nothing more to do."""
        shape = (self.height, self.width, self.channels)
        return tf.cond(
            tf.reduce_all(tf.equal(tf.image.extract_jpeg_shape(encoded), shape)),
            lambda: tf.cast(tf.io.decode_jpeg(encoded, channels=self.channels), self.dtype),
            lambda: other(encoded),
        )

    def _at_ratio(self, encoded: Any, ratio: int) -> Any:
        image = tf.io.decode_jpeg(encoded, channels=min(self.channels, 3), ratio=ratio)
        return self._resized(self._with_opacity(image))

    def _png(self, encoded: Any) -> Any:
        return self._resized(tf.io.decode_png(encoded, channels=self.channels))

    def _branch(self, encoded: Any, share_bytes: int) -> Any:
        """Which way to take: one of the ratios, PNG, or apart."""
        header = tf.strings.substr(encoded, 0, _EXIF_BYTES)
        is_jpeg = tf.equal(tf.strings.substr(header, 0, len(_JPEG)), _JPEG)
        is_png = tf.equal(tf.strings.substr(header, 0, len(_PNG)), _PNG)
        shape = tf.image.extract_jpeg_shape(tf.where(is_jpeg, encoded, _smallest_jpeg()))
        ratio = self._ratio(shape[0], shape[1])
        sides = tf.strings.substr(tf.strings.join([tf.strings.substr(header, 0, 24), bytes(24)]), 16, 8)
        png_pixels = tf.reduce_prod(tf.cast(tf.io.decode_raw(sides, tf.int32, little_endian=False), tf.int64))
        jpeg_pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64)) // tf.gather(
            tf.constant(_SQUARES, tf.int64), ratio
        )
        is_odd = [
            tf.logical_not(tf.logical_or(is_jpeg, is_png)),
            tf.where(is_jpeg, jpeg_pixels, png_pixels) * self.channels > share_bytes,
            tf.logical_and(is_jpeg, tf.strings.regex_full_match(header, _IS_TURNED)),
            tf.logical_and(is_jpeg, shape[2] > 3) if self.channels == 1 else False,
        ]
        return tf.where(tf.reduce_any(tf.stack(is_odd)), _APART, tf.where(is_jpeg, ratio, _FOR_PNG))

    def _ratio(self, height: Any, width: Any) -> Any:
        """Which of the ratios is the largest that leaves an image no smaller than it shall be."""
        spare = tf.minimum(height // self.height, width // self.width)
        return tf.reduce_sum(tf.cast(spare >= tf.constant(_RATIOS[1:]), tf.int32))

    def _upright_jpeg(self, encoded: bytes) -> Any:
        """A JPEG as it was seen, whichever way its camera was held."""
        height, width, colours = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
        turns = orientation(encoded)
        ratio = _RATIOS[int(self._ratio(width, height) if turns >= 5 else self._ratio(height, width))]
        # The library makes no grey image of one for print, with its four colours.
        channels = 1 if self.channels == 1 and colours < 4 else 3
        image = tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio).numpy()
        return self._with_channels(_turned(image, turns))

    def _with_channels(self, image: Array) -> Any:
        """Grey, coloured or with transparency, as it may be, with the channels wanted."""
        found = image.shape[2]
        if found == self.channels:
            return image
        coloured = image[:, :, :3] if found >= 3 else np.repeat(image[:, :, :1], 3, axis=2)
        return tf.image.rgb_to_grayscale(coloured) if self.channels == 1 else self._with_opacity(coloured)

    def _with_opacity(self, image: Any) -> Any:
        """An image without transparency, with a fourth channel that says so where one is wanted."""
        if self.channels < 4:
            return image
        opaque = tf.fill(tf.concat([tf.shape(image)[:2], [1]], 0), tf.constant(255, tf.uint8))
        return tf.concat([image, opaque], axis=2)

    def _resized(self, image: Any) -> Any:
        resized = tf.raw_ops.ResizeBilinear(
            images=tf.convert_to_tensor(image)[None], size=(self.height, self.width), half_pixel_centers=True
        )[0]
        # A mean of bytes is never outside of their range.
        return tf.cast(tf.round(resized), tf.uint8) if self.dtype == tf.uint8 else resized


_SQUARES = tuple(ratio**2 for ratio in _RATIOS)


@functools.cache
def _smallest_jpeg() -> bytes:
    """A JPEG file for operations that take nothing else, where there is none."""
    with tf.init_scope():
        return bytes(tf.io.encode_jpeg(np.zeros((1, 1, 1), np.uint8)).numpy())


def orientation(encoded: bytes) -> int:
    """How a camera was held, by a JPEG's Exif data: 1 is upright, 5 to 8 lie on their sides."""
    begin = encoded[:64].find(b"Exif\0\0")
    tiff = encoded[begin + 6 : begin + 6 + _EXIF_BYTES]
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if begin < 0 or order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, value = struct.unpack_from(f"{order}H6xH", tiff, entry)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass  # a directory that goes on beyond what was read
    return 1


def _turned(image: Array, turns: int) -> Array:
    """An image as it was seen."""
    image = image.swapaxes(0, 1) if turns >= 5 else image
    image = image[:, ::-1] if turns in (2, 3, 6, 7) else image
    return image[::-1] if turns in (3, 4, 7, 8) else image
