"""Records of uncompressed TFRecord files, read by index."""

from __future__ import annotations

import os
from itertools import groupby

import numpy as np
import tensorflow as tf

from memfit.data.records.checksums import masked_checksums
from memfit.data.records.frames import FRAME_BYTES, HEADER_BYTES, opened
from memfit.data.records.indexes import Place, RecordIndex
from memfit.data.sources import Array, Indices, Spec, Unreadable


class RecordFiles:
    """Serialised records; what is read is checked as TensorFlow would check it."""

    def __init__(self, index: RecordIndex) -> None:
        self.specs: tuple[Spec, ...] = (Spec(tf.string),)
        self.index = index
        self.length = len(index)

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """The data of records, file by file in the order of their offsets."""
        places = self.index.places(indices)
        frames: dict[Place, bytes] = {}
        for file, together in groupby(sorted(set(places)), key=lambda place: place.file):
            frames.update(self._frames(self.index.names[file], list(together)))
        records = [frame[HEADER_BYTES:-4] for frame in frames.values()]
        checksums = [int.from_bytes(frame[-4:], "little") for frame in frames.values()]
        for place, right in zip(frames, masked_checksums(records) == checksums, strict=True):
            if not right:
                raise Unreadable(self.index.name(place), "its data do not match their checksum")
        data = dict(zip(frames, records, strict=True))
        found = np.empty(len(places), object)
        found[:] = [data[place] for place in places]
        return (found,)

    def _frames(self, path: bytes, places: list[Place]) -> dict[Place, bytes]:
        try:
            with opened(path) as descriptor:
                return {place: self._frame(descriptor, place) for place in places}
        except OSError as error:
            raise Unreadable(self.index.name(places[0]), error.strerror or str(error)) from error

    def _frame(self, descriptor: int, place: Place) -> bytes:
        if place.length < 0:
            raise self.index.lost(place)
        frame = os.pread(descriptor, place.length + FRAME_BYTES, place.offset)
        if len(frame) < place.length + FRAME_BYTES:
            raise Unreadable(self.index.name(place), "the file ends in it")
        if int.from_bytes(frame[:8], "little") != place.length:
            reason = f"its length is not {place.length:,} bytes, as it was when it was found"
            raise Unreadable(self.index.name(place), reason)
        return frame

    def name(self, index: int) -> str:
        """The file, the number of the record in it, and where it begins."""
        (place,) = self.index.places(np.array([index], np.int64))
        return self.index.name(place)
