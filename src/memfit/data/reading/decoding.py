"""Encoded images -> tensors of one size, with TensorFlow's own operations, decoding no more than it takes.

There are two ways to the same result. In a graph, upright JPEG and PNG files of ordinary size are decoded
(`graph_decoding.py`); a graph that could do everything would take longer to begin with than many images take.
All else is decoded by Python code that calls TensorFlow's operations one by one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.errors import InvalidStream
from memfit.data.stream.source import Array, Spec

IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".jpe", b".png", b".bmp", b".gif", b".webp")

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG"
RATIOS = (1, 2, 4, 8)
# Exif data begin right behind the file's first mark, or behind a JFIF segment of 18 bytes, with the first
# directory in them.
EXIF_BYTES = 2048
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Decoder:
    """A decoder of images to one size, number of channels and type."""

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
        if encoded.startswith(JPEG):
            image = self._upright_jpeg(encoded)
        elif encoded.startswith(PNG):
            image = self.png(encoded)
        else:
            image = self._with_channels(tf.io.decode_image(encoded, expand_animations=False).numpy())
        return self.resized(image)

    def needed_bytes(self, encoded: bytes) -> int:
        """The bytes that an image takes while it is decoded; 0 for kinds that do not say it up front."""
        height, width = self.sides(encoded)
        ratio = self.ratio(height, width) if encoded.startswith(JPEG) else 1
        return height * width * self.channels // ratio**2

    def sides(self, encoded: bytes) -> tuple[int, int]:
        """Height and width of an image as it is kept; 0 for kinds that do not say it up front."""
        if encoded.startswith(JPEG):
            height, width, _ = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
            return height, width
        if encoded.startswith(PNG) and len(encoded) >= 24:
            width, height = struct.unpack(">II", encoded[16:24])
            return height, width
        return 0, 0

    def ratio(self, height: int, width: int) -> int:
        """The largest ratio that leaves a JPEG no smaller than it shall be."""
        spare = min(height // self.height, width // self.width)
        return max(ratio for ratio in RATIOS if ratio <= max(1, spare))

    def jpeg(self, encoded: Any, ratio: int) -> Any:
        """A JPEG with the channels wanted, and that part of its sides."""
        image = tf.io.decode_jpeg(encoded, channels=min(self.channels, 3), ratio=ratio)
        return self._with_opacity(image)

    def png(self, encoded: Any) -> Any:
        """A PNG with the channels wanted."""
        return tf.io.decode_png(encoded, channels=self.channels)

    def _upright_jpeg(self, encoded: bytes) -> Any:
        """A JPEG as it was seen, whichever way its camera was held."""
        height, width, colours = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
        turns = orientation(encoded)
        ratio = self.ratio(width, height) if turns >= 5 else self.ratio(height, width)
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

    def resized(self, image: Any) -> Any:
        """An image of the size and type wanted."""
        images = tf.expand_dims(image, 0)
        resized = tf.raw_ops.ResizeBilinear(
            images=images, size=(self.height, self.width), half_pixel_centers=True
        )
        resized = tf.squeeze(resized, 0)
        # A mean of bytes is never outside of their range.
        return tf.cast(tf.round(resized), tf.uint8) if self.dtype == tf.uint8 else resized


def orientation(encoded: bytes) -> int:
    """The orientation in a JPEG's Exif data: 1 is upright, 5 to 8 lie on their sides."""
    begin = encoded[:64].find(b"Exif\0\0")
    tiff = encoded[begin + 6 : begin + 6 + EXIF_BYTES]
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


def make_decoder(size: Any, channels: int, dtype: str) -> Decoder:
    """The decoder for a size, a number of channels and a type, all checked."""
    is_size = (
        isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    )
    if not is_size or channels not in (1, 3, 4) or dtype not in ("uint8", "float32"):
        raise InvalidStream(
            "images cannot become that.",
            expected='size=(height, width), channels of 1, 3 or 4, dtype "uint8" or "float32"',
            received=f"size={size!r}, channels={channels!r}, dtype={dtype!r}",
            suggestion="size=(224, 224)",
        )
    height, width = size
    return Decoder(height, width, channels, tf.as_dtype(dtype))
