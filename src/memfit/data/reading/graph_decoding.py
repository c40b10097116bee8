"""Encoded images -> tensors in a graph: what most images are at once, all else by one question after another.

TensorFlow takes its time for each operation, and walks through branches that are not taken as well. So most
images pass no more than one or two questions, and all else is in functions that are called only when needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import tensorflow as tf

from memfit.data.reading.decoding import EXIF_BYTES, JPEG, PNG, RATIOS, Decoder
from memfit.data.reading.usual_images import PLAIN_BYTES, PNG_HEADER, LookedAt, Usual

Decode = Callable[[Any], Any]  # one encoded image -> what is handed out

# The same as `PLAIN_JPEG`, in TensorFlow's words.
_IS_PLAIN = r"\C{6}JFIF\C{14}\x00"
# An orientation other than upright is one number of 16 bits in Exif data, in either byte order.
_IS_TURNED = (
    r"\C*(?:\x12\x01\x03\x00\x01\x00\x00\x00[\x02-\x08]\x00"
    r"|\x01\x12\x00\x03\x00\x00\x00\x01\x00[\x02-\x08])\C*"
)
_SIDES = 24  # the bytes of a PNG file up to its sides, and these


@dataclass(frozen=True)
class GraphDecoder:
    """A decoder in a graph: upright JPEG and PNG files that take no more than their share, all else apart."""

    decoder: Decoder
    apart: Decode
    share_bytes: int
    looked_at: LookedAt

    @property
    def usual(self) -> Usual:
        """The kind of most images."""
        return self.looked_at.usual or Usual(is_png=False)

    @property
    def _bounds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.usual.bounds(self.decoder, self.share_bytes // self.decoder.channels)

    @property
    def _most_pixels(self) -> int:
        return self.share_bytes // self.decoder.channels

    @property
    def _most_colours(self) -> int:
        # The library makes no grey image of one for print, with its four colours.
        return 3 if self.decoder.channels == 1 else 4

    def build(self) -> Decode:
        """The function for a graph."""
        # A graph of all kinds takes some time to begin with, in every epoch.
        other = self.apart if self.looked_at.are_alike(*self._bounds) else self._any_image()
        is_usual = self._is_usual_png if self.usual.is_png else self._is_usual_jpeg

        def decode(encoded: Any) -> Any:
            return tf.cond(is_usual(encoded), lambda: self._usual(encoded), lambda: other(encoded))

        def decode_jpeg(encoded: Any) -> Any:
            header = tf.strings.substr(encoded, 0, PLAIN_BYTES)
            is_plain = tf.strings.regex_full_match(header, _IS_PLAIN)
            return tf.cond(is_plain, lambda: decode(encoded), lambda: other(encoded))

        return decode if self.usual.is_png else decode_jpeg

    def _usual(self, encoded: Any) -> Any:
        decoder = self.decoder
        image = decoder.png(encoded) if self.usual.is_png else decoder.jpeg(encoded, self.usual.ratio)
        if not self.usual.is_exact:
            return decoder.resized(image)
        image.set_shape(decoder.spec.shape)
        return tf.cast(image, decoder.dtype)

    def _is_usual_png(self, encoded: Any) -> Any:
        low, high = self._bounds
        return _are_within(_png_header(encoded), (*PNG_HEADER, *low[::-1]), (*PNG_HEADER, *high[::-1]))

    def _is_usual_jpeg(self, encoded: Any) -> Any:
        low, high = self._bounds
        shape = tf.image.extract_jpeg_shape(encoded)
        return _are_within(shape, (*low, 1), (*high, self._most_colours))

    def _any_image(self) -> Decode:
        """All questions, one after the other; each answer is a function that is called.

        Kinds of which none was looked at are rare, and go apart: each function adds to the time of a start.
        """
        apart = self._function(self.apart)
        seen = {(one.kind.is_png, one.kind.ratio) for one in self.looked_at.seen if one is not None}
        ratios = [self._function(self._at_ratio(n)) if (False, n) in seen else apart for n in RATIOS]
        jpegs = self._function(
            lambda encoded: self._case(self._which_ratio(encoded), encoded, [*ratios, apart])
        )
        pngs = self._pngs(apart) if any(is_png for is_png, _ in seen) else apart
        kinds = [jpegs, pngs, apart]
        # A function around all of them can be called without a graph too.
        return cast(
            Decode,
            tf.function(lambda encoded: self._case(_which_kind(encoded), encoded, kinds), autograph=False),
        )

    def _pngs(self, apart: Any) -> Any:
        png = self._function(lambda encoded: self.decoder.resized(self.decoder.png(encoded)))
        return self._function(lambda encoded: self._case(self._is_large_png(encoded), encoded, [png, apart]))

    def _function(self, function: Decode) -> Any:
        with tf.init_scope():
            traced = tf.function(function, autograph=False)
            return traced.get_concrete_function(tf.TensorSpec((), tf.string))

    def _case(self, index: Any, encoded: Any, branches: list[Any]) -> Any:
        """The result of one of some functions: `tf.switch_case`, but TensorFlow leaves the others alone."""
        spec = self.decoder.spec
        (image,) = tf.raw_ops.StatelessCase(
            branch_index=index,
            input=[encoded],
            Tout=[spec.dtype],
            branches=branches,
            output_shapes=[tf.TensorShape(spec.shape)],
        )
        return image

    def _at_ratio(self, ratio: int) -> Decode:
        return lambda encoded: self.decoder.resized(self.decoder.jpeg(encoded, ratio))

    def _which_ratio(self, encoded: Any) -> Any:
        """Which ratio is the largest that leaves a JPEG no smaller than it shall be; behind them, apart."""
        shape = tf.image.extract_jpeg_shape(encoded, tf.int64)
        spare = tf.reduce_min(shape[:2] // (self.decoder.height, self.decoder.width))
        ratio = tf.raw_ops.Bucketize(input=spare, boundaries=RATIOS[1:])
        most_pixels = tf.gather(tf.constant([self._most_pixels * n**2 for n in RATIOS], tf.int64), ratio)
        is_odd = tf.logical_or(tf.reduce_prod(shape[:2]) > most_pixels, shape[2] > self._most_colours)
        return tf.where(is_odd, len(RATIOS), ratio)

    def _is_large_png(self, encoded: Any) -> Any:
        sides = tf.cast(_png_header(encoded)[len(PNG_HEADER) :], tf.int64)
        return tf.cast(tf.reduce_prod(sides) > self._most_pixels, tf.int32)


def _which_kind(encoded: Any) -> Any:
    """0 for upright JPEG files, 1 for PNG files, 2 for all else."""
    header = tf.strings.substr(encoded, 0, EXIF_BYTES)
    is_jpeg = tf.equal(tf.strings.substr(header, 0, len(JPEG)), JPEG)
    is_png = tf.equal(tf.strings.substr(header, 0, len(PNG)), PNG)
    is_turned = tf.strings.regex_full_match(header, _IS_TURNED)
    return tf.where(is_jpeg, 2 * tf.cast(is_turned, tf.int32), tf.where(is_png, 1, 2))


def _png_header(encoded: Any) -> Any:
    """The first bytes as numbers, the last two of them width and height; zeros behind a shorter file."""
    return tf.io.decode_raw(encoded, tf.int32, little_endian=False, fixed_length=_SIDES)


def _are_within(values: Any, low: tuple[int, ...], high: tuple[int, ...]) -> Any:
    clipped = tf.raw_ops.ClipByValue(
        t=values, clip_value_min=tf.constant(low), clip_value_max=tf.constant(high)
    )
    return tf.reduce_all(tf.equal(clipped, values))
