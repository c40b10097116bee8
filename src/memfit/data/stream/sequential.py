"""Elements that come one after the other, and cannot be reached by index: a pass over them for each epoch.

Where a reader is in a pass is kept here, but never matters: whoever asks for other positions than the next
ones gets a new pass that runs up to them. So iterators can be saved and restored, and `start` works; what it
costs is running through what was used before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.core.errors import InvalidStream
from memfit.data.stream.budget import Allotment, SampleSizes, allot
from memfit.data.stream.dataset import deliver
from memfit.data.stream.definition import Finish
from memfit.data.stream.options import Options
from memfit.data.stream.order import Order
from memfit.data.stream.source import Array, Indices, Spec, call, register, release_with

Element = tuple[Any, ...]

_UNKNOWN_LENGTH = 1 << 62
_OBJECT_BYTES = 96  # of a NumPy array beside its values
_OPEN_PASSES = 4  # as many as iterators are used in turns


@dataclass(frozen=True)
class Passage:
    """A sequence of elements that can be run through again and again, and what is known about it."""

    begin: Callable[[], Iterator[Element]]
    specs: tuple[Spec, ...]
    length: int | None
    element_bytes: int
    name: str

    def shape_mismatch(self, ordinal: int, reason: object) -> InvalidStream:
        """The error for an element that is not like the others."""
        specs = ", ".join(f"{spec.dtype.name}{list(spec.shape)}" for spec in self.specs)
        return InvalidStream(
            f"element {ordinal:,} of {self.name} is not like the first ones: {reason}.",
            expected=specs,
            received=f"something else as element {ordinal:,}",
            suggestion="like=…, with None where sizes differ, and batch_size=None",
        )


class Passes:
    """The passes that are open, each with its position."""

    def __init__(self, passage: Passage, window_bytes: int | None) -> None:
        self._passage, self._window_bytes = passage, window_bytes
        self._lock = threading.Lock()
        self._open: OrderedDict[int, tuple[int, Iterator[Element]]] = OrderedDict()

    def read(self, positions: Indices, markers: Indices) -> tuple[Array, ...]:
        """The elements at consecutive positions of an epoch's pass; fewer at its end."""
        begin, marker = int(positions[0]), int(markers[0])
        with self._lock:
            elements = list(islice(self._at(marker, begin), len(positions)))
            self._open[marker] = (begin + len(elements), self._open[marker][1])
        if not elements:
            return tuple(spec.empty() for spec in self._passage.specs)
        return tuple(
            self._stacked(spec, parts, begin)
            for spec, parts in zip(self._passage.specs, zip(*elements, strict=True), strict=True)
        )

    def _at(self, marker: int, position: int) -> Iterator[Element]:
        at, elements = self._open.pop(marker, (-1, None))
        if at != position or elements is None:
            elements = self._begin(marker)
            next(islice(elements, position, position), None)
        self._open[marker] = (position, elements)
        if len(self._open) > _OPEN_PASSES:
            self._open.popitem(last=False)
        return elements

    def _begin(self, marker: int) -> Iterator[Element]:
        elements = self._passage.begin()
        if self._window_bytes is None:
            return elements
        return shuffled(elements, self._window_bytes, np.random.default_rng(marker & (2**64 - 1)))

    def _stacked(self, spec: Spec, parts: tuple[Any, ...], begin: int) -> Array:
        if spec.dtype == tf.string:
            return np.array(parts, object)
        try:
            found = np.stack([np.asarray(part, spec.dtype.as_numpy_dtype) for part in parts])
        except (ValueError, TypeError) as error:
            raise self._passage.shape_mismatch(begin, error) from error
        if not tf.TensorShape(spec.shape).is_compatible_with(found.shape[1:]):
            raise self._passage.shape_mismatch(begin, f"its shape is {list(found.shape[1:])}")
        return found


def shuffled(
    elements: Iterator[Element], window_bytes: int, random: np.random.Generator
) -> Iterator[Element]:
    """Each element in the place of a random one that came before, of as many as fit into a window."""
    window: list[Element] = []
    held_bytes = 0
    for element in elements:
        window.append(element)
        held_bytes += element_bytes(element)
        while held_bytes > window_bytes and window:
            chosen = _taken(window, random)
            held_bytes -= element_bytes(chosen)
            yield chosen
    while window:
        yield _taken(window, random)


def _taken(window: list[Element], random: np.random.Generator) -> Element:
    place = int(random.integers(len(window)))
    window[place], window[-1] = window[-1], window[place]
    return window.pop()


def element_bytes(element: Element) -> int:
    """The bytes that an element takes while it waits."""
    return sum(
        len(part) if isinstance(part, (bytes, str)) else np.asarray(part).nbytes + _OBJECT_BYTES
        for part in element
    )


@dataclass(frozen=True)
class Course:
    """All that the dataset of a passage is made of."""

    source: Passage
    options: Options

    @property
    def sizes(self) -> SampleSizes:
        """The bytes that elements take as they are read and handed out."""
        return SampleSizes(
            held_bytes=0,
            raw_bytes=self.source.element_bytes,
            working_bytes=0,
            element_bytes=self.source.element_bytes,
        )

    @property
    def order(self) -> Order:
        """Positions as they come; it is the passage itself that is shuffled."""
        return Order(self.source.length or _UNKNOWN_LENGTH, False, self.options.seed, self.options.start)

    def allotment(self) -> Allotment:
        """The widest allotment that stays within its RAM."""
        options = self.options
        return allot(
            self.sizes,
            batch_size=options.batch_size or 1,
            ram_bytes=options.ram_bytes,
            width=1,
            has_window=bool(options.shuffle),
        )


def open_passage(passage: Passage, options: Options, finish: Finish) -> Any:
    """The dataset of a passage."""
    course = Course(passage, options)
    allotment = course.allotment()
    window_bytes = allotment.window * max(1, passage.element_bytes) if options.shuffle else None
    reads = register(Passes(passage, window_bytes).read)

    def read(markers: Any, positions: Any, _: Any) -> tuple[Any, ...]:
        return call(reads, passage.specs, positions, markers)

    batches = course.order.blocks(options.batch_size or 1).map(read)
    batches = batches.take_while(lambda first, *_: tf.shape(first)[0] > 0).map(finish)
    whole = passage.length if options.start % (passage.length or 1) == 0 else None
    dataset = deliver(batches, options, whole).with_options(_in_turn()).prefetch(allotment.prefetch)
    release_with(dataset, reads)
    dataset.memfit_stream = course
    return dataset


def _in_turn() -> Any:
    """TensorFlow would read several blocks at once, and each would begin a pass of its own."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return options
