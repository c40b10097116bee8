"""Elements that are kept once they were read and decoded: in memory where they fit, otherwise on disk."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.cache import home
from memfit.core.units import format_size
from memfit.data.stream.budget import SampleSizes, least_bytes
from memfit.data.stream.definition import Stream
from memfit.data.stream.source import Array, Indices, Source, Spec, call, register

logger = logging.getLogger("memfit")

_FLAG, _INDEX = Spec(tf.bool), Spec(tf.int64)


class SampleCache:
    """A place for every element, and which of them are there."""

    def __init__(self, specs: tuple[Spec, ...], length: int, reserve: Callable[[int], Array]) -> None:
        self._rows = [
            reserve(length * spec.size_bytes).view(spec.dtype.as_numpy_dtype).reshape(length, *spec.shape)
            for spec in specs
        ]
        self._is_there = np.zeros(length, np.bool_)

    def has(self, indices: Indices) -> Array:
        """Which of some elements are there."""
        found: Array = self._is_there[indices]
        return found

    def take(self, indices: Indices) -> list[Array]:
        """The elements with these indices; what is not there is whatever it is."""
        return [rows[indices] for rows in self._rows]

    def put(self, indices: Indices, *parts: Array) -> None:
        """Keep elements."""
        for rows, part in zip(self._rows, parts, strict=True):
            rows[indices] = part
        self._is_there[indices] = True


class KeptRows:
    """A source whose elements need no decoding, each read once."""

    def __init__(self, source: Source, cache: SampleCache) -> None:
        self._source, self._cache = source, cache
        self.length, self.specs, self.name = source.length, source.specs, source.name

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """The elements, from the cache where they are there."""
        missing = indices[~self._cache.has(indices)]
        if len(missing):
            self._cache.put(missing, *self._source.read(missing))
        return tuple(self._cache.take(indices))


class KeptDecoded:
    """A source that gives what is in the cache beside what is still to be decoded."""

    def __init__(self, source: Source, cache: SampleCache, decoded: tuple[Spec, ...]) -> None:
        self._source, self._cache = source, cache
        self.length, self.name = source.length, source.name
        self.specs = (_INDEX, _FLAG, *source.specs, *decoded)

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """Indices, whether each is in the cache, what it is made of if not, and what it is if so."""
        is_there = self._cache.has(indices)
        parts = [spec.blank(len(indices)) for spec in self._source.specs]
        if not is_there.all():
            for part, found in zip(parts, self._source.read(indices[~is_there]), strict=True):
                part[~is_there] = found
        return indices, is_there, *parts, *self._cache.take(indices)

    def keep(self, index: Any, *parts: Array) -> tuple[Array, ...]:
        """Put one decoded element in the cache, and hand it on."""
        place = np.array([index], np.int64)
        self._cache.put(place, *(part[None] for part in parts))
        return tuple(self._cache.take(place))


def keep(stream: Stream) -> Stream:
    """The same stream, but elements are read and decoded once, where there is room to keep them."""
    room = _find_room(stream)
    if room is None:
        return stream
    reserve, sizes = room
    try:
        cache = SampleCache(stream.decoded, stream.source.length, reserve)
    except OSError as error:
        logger.warning("Elements are not kept on disk: %s.", error)
        return stream
    if stream.decode is None:
        return dataclasses.replace(stream, source=KeptRows(stream.source, cache), sizes=sizes)
    source = KeptDecoded(stream.source, cache, stream.decoded)
    number = register(source.keep)
    return dataclasses.replace(
        stream,
        source=source,
        sizes=sizes,
        decode=_with_cache(stream, number),
        registered=(*stream.registered, number),
    )


def _with_cache(stream: Stream, number: int) -> Callable[..., tuple[Any, ...]]:
    decode, count = stream.decode, len(stream.source.specs)
    assert decode is not None

    def decoded_once(index: Any, is_there: Any, *parts: Any) -> tuple[Any, ...]:
        raw, kept = parts[:count], parts[count:]

        def decoded() -> tuple[Any, ...]:
            # TensorFlow would leave out a call that nothing comes of.
            return tuple(part[0] for part in call(number, stream.decoded, index, *decode(*raw)))

        return tuple(tf.cond(is_there, lambda: kept, decoded))

    return decoded_once


def _find_room(stream: Stream) -> tuple[Callable[[int], Array], SampleSizes] | None:
    """The function that reserves room for all elements, and their sizes then; None where they fit nowhere."""
    if any(spec.dtype == tf.string or None in spec.shape for spec in stream.decoded):
        logger.warning("Elements are not kept, since they differ in size.")
        return None
    length, options = stream.source.length, stream.options
    size_bytes = length * sum(spec.size_bytes for spec in stream.decoded)
    on_disk = dataclasses.replace(
        stream.sizes,
        held_bytes=stream.sizes.held_bytes + length,  # which of them are there
        raw_bytes=stream.sizes.raw_bytes + stream.sizes.element_bytes,
    )
    in_memory = dataclasses.replace(on_disk, cached_bytes=size_bytes)
    if least_bytes(in_memory, options.block_size) <= options.ram_bytes:
        return _in_memory, in_memory
    if size_bytes <= options.disk_bytes and least_bytes(on_disk, options.block_size) <= options.ram_bytes:
        return _on_disk, on_disk
    logger.warning(
        "Elements are not kept: all of them take %s, more than ram (%s) and disk (%s) have room for.",
        *map(format_size, (size_bytes, options.ram_bytes, options.disk_bytes)),
    )
    return None


def _in_memory(size_bytes: int) -> Array:
    return np.empty(size_bytes, np.uint8)


def _on_disk(size_bytes: int) -> Array:
    """A file without a name, which goes with the process; its room is reserved, or a full disk would kill."""
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=home()) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(1, size_bytes))
        return np.memmap(file, np.uint8, "r+", shape=(size_bytes,))
