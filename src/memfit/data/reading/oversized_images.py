"""Decoding within the RAM of a stream: the size of images, from a few of them, and images that need more."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.units import format_size
from memfit.data.reading.decoding import Decoder
from memfit.data.reading.graph_decoding import GraphDecoder
from memfit.data.reading.usual_images import LookedAt
from memfit.data.stream.budget import SampleSizes, allot, decoders
from memfit.data.stream.options import Options
from memfit.data.stream.source import Array, Indices, Spec, call, register

_SAMPLED = 24
_PATH_BYTES = 128
_QUANTILE, _MARGIN = 0.75, 1.5  # how large images are for which there is room on every core


@dataclass(frozen=True)
class OversizedImages:
    """A decoder that knows how much it may use.

    What a stream counts with comes from a few of its images. Any other is looked at before it is decoded: one
    that needs more than its share waits until it is the only one of that kind, and one that needs more than
    all there is fails, and is named.
    """

    decoder: Decoder
    share_bytes: int
    most_bytes: int
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def in_graph(self, looked_at: LookedAt) -> tuple[Any, int]:
        """A function of one encoded image, and the number to release with its dataset."""
        number = register(self._alone)

        def apart(encoded: Any) -> Any:
            return call(number, (self.decoder.spec,), encoded)[0][0]

        in_graph = GraphDecoder(self.decoder, apart, self.share_bytes, looked_at).build()

        def decode(encoded: Any) -> Any:
            # Why an image failed is asked on one of TensorFlow's threads, for which a graph may wait.
            return self._alone(encoded.numpy())[0][0] if tf.executing_eagerly() else in_graph(encoded)

        return decode, number

    def _alone(self, encoded: bytes) -> tuple[Array]:
        needed_bytes = self.decoder.needed_bytes(encoded)
        if needed_bytes > self.most_bytes:
            raise ValueError(
                f"it takes {format_size(needed_bytes)} to decode; of the stream's RAM "
                f"{format_size(self.most_bytes)} are left"
            )
        is_oversized = needed_bytes > self.share_bytes
        with self._lock if is_oversized else nullcontext():
            return (self.decoder(encoded).numpy()[None],)


def guarded(decoder: Decoder, sizes: SampleSizes, options: Options, looked_at: LookedAt) -> tuple[Any, int]:
    """A decoder for a stream of such images, and the number to release with its dataset."""
    allotment = allot(
        sizes,
        batch_size=options.block_size,
        ram_bytes=options.ram_bytes,
        width=decoders(),
        reads_ahead=True,
    )
    spare_bytes = options.ram_bytes - allotment.total_bytes
    images = OversizedImages(decoder, sizes.working_bytes, sizes.working_bytes + spare_bytes)
    return images.in_graph(looked_at)


def sampled_indices(length: int) -> Indices:
    """Elements that stand for all of them, spread over the data set."""
    return np.linspace(0, length - 1, min(_SAMPLED, length)).astype(np.int64)


def measure_images(
    held_bytes: int, looked_at: LookedAt, decoder: Decoder, rest: tuple[Spec, ...]
) -> SampleSizes:
    """The bytes that images take as they are read, decoded and handed out, estimated from some of them."""
    needed = [0, *looked_at.needed_bytes]
    # An image of another size is made of float32 first.
    resized_bytes = 4 * decoder.height * decoder.width * decoder.channels
    rest_bytes = sum(spec.size_bytes for spec in rest)
    return SampleSizes(
        held_bytes=held_bytes,
        raw_bytes=rest_bytes + _PATH_BYTES,
        working_bytes=int(_MARGIN * np.quantile(needed, _QUANTILE)) + resized_bytes,
        element_bytes=decoder.spec.size_bytes + rest_bytes,
    )
