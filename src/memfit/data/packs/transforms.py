"""What happens to encoded images on their way into a pack, with the decoder that streams use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memfit.data.decoding import Decoder

_PNG = b"\x89PNG"
_JPEG = b"\xff\xd8\xff"
_QUALITY = 95
_CHANNELS_OF_PNG = {0: 1, 4: 4, 6: 4}  # by its type of colour: grey, grey and colours with transparency


def as_it_is(encoded: bytes) -> bytes:
    """An image that nobody looks at."""
    return encoded


def checked(encoded: bytes) -> bytes:
    """An image that can be decoded; raises TensorFlow's error if it cannot."""
    with tf.device("CPU:0"):
        tf.io.decode_image(encoded, expand_animations=False)
    return encoded


def pixels(size: tuple[int, int], channels: int) -> Callable[[bytes], Any]:
    """A function that decodes an image to an array of one size."""
    decoder = Decoder(*size, channels, tf.uint8)

    def decode(encoded: bytes) -> Any:
        with tf.device("CPU:0"):
            return decoder(encoded).numpy()

    return decode


def resized(size: tuple[int, int]) -> Callable[[bytes], bytes]:
    """A function that makes an image of one size, encoded again; PNG stays PNG, grey stays grey."""

    def resize(encoded: bytes) -> bytes:
        is_png = encoded.startswith(_PNG)
        with tf.device("CPU:0"):
            channels = _channels_of_png(encoded) if is_png else _channels_of_others(encoded)
            image = Decoder(*size, channels, tf.uint8)(encoded)
            again = tf.io.encode_png(image) if is_png else tf.io.encode_jpeg(image, quality=_QUALITY)
        return bytes(again.numpy())

    return resize


def _channels_of_png(encoded: bytes) -> int:
    if b"tRNS" in encoded.partition(b"IDAT")[0]:
        return 4
    return _CHANNELS_OF_PNG.get(encoded[25] if len(encoded) > 25 else 2, 3)


def _channels_of_others(encoded: bytes) -> int:
    if not encoded.startswith(_JPEG):
        return 3
    return 1 if int(tf.image.extract_jpeg_shape(encoded)[2]) == 1 else 3
