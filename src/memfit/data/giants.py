"""Images that are larger than a stream counts with: decoded one at a time, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.data.budgets import Sizes, allot, decoders
from memfit.data.decoding import Decoder
from memfit.data.options import Options
from memfit.data.sources import Array, Indices, Spec, call, register
from memfit.units import format_size

_SAMPLED = 24
_PATH_BYTES = 128
_QUANTILE, _MARGIN = 0.75, 1.5  # how large images are for which there is room on every core


@dataclass(frozen=True)
class Giants:
    """A decoder that knows how much it may use.

    What a stream counts with comes from a few of its images. Any other is looked at before it is decoded: one
    that needs more than its share waits until it is the only one of that kind, and one that needs more than
    all there is fails, and is named.
    """

    decoder: Decoder
    share_bytes: int
    most_bytes: int
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def in_graph(self) -> tuple[Any, int]:
        """A function of one encoded image, and the number to release with its dataset."""
        number = register(self._alone)

        def apart(encoded: Any) -> Any:
            return call(number, (self.decoder.spec,), encoded)[0][0]

        return self.decoder.in_graph(apart, self.share_bytes), number

    def _alone(self, encoded: bytes) -> tuple[Array]:
        needed_bytes = self.decoder.needed_bytes(encoded)
        if needed_bytes > self.most_bytes:
            raise ValueError(
                f"it takes {format_size(needed_bytes)} to decode; of the stream's RAM "
                f"{format_size(self.most_bytes)} are left"
            )
        is_giant = needed_bytes > self.share_bytes
        with self._lock if is_giant else nullcontext():
            return (self.decoder(encoded).numpy()[None],)


def guarded(decoder: Decoder, sizes: Sizes, options: Options) -> tuple[Any, int]:
    """A decoder for a stream, and the number to release with its dataset."""
    allotment = allot(sizes, batch_size=options.block_size, ram_bytes=options.ram_bytes, width=decoders())
    spare_bytes = options.ram_bytes - allotment.total_bytes
    return Giants(decoder, sizes.working_bytes, sizes.working_bytes + spare_bytes).in_graph()


def sampled_indices(length: int) -> Indices:
    """Elements that stand for all of them, spread over the data set."""
    return np.linspace(0, length - 1, min(_SAMPLED, length)).astype(np.int64)


def measure_images(
    held_bytes: int, encoded: Iterable[bytes], decoder: Decoder, rest: tuple[Spec, ...]
) -> Sizes:
    """What images take on their way, by some of them."""
    needed = [0]
    for image in encoded:
        with suppress(tf.errors.OpError, ValueError):
            needed.append(len(image) + decoder.needed_bytes(image))
    # An image of another size is made of float32 first.
    resized_bytes = 4 * decoder.height * decoder.width * decoder.channels
    rest_bytes = sum(spec.size_bytes for spec in rest)
    return Sizes(
        held_bytes=held_bytes,
        raw_bytes=rest_bytes + _PATH_BYTES,
        working_bytes=int(_MARGIN * np.quantile(needed, _QUANTILE)) + resized_bytes,
        element_bytes=decoder.spec.size_bytes + rest_bytes,
    )
