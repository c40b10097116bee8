"""`from_generator`: what a Python function yields, as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from memfit.core.errors import InvalidStream, NoData
from memfit.data.stream.options import StreamOptions, read_options
from memfit.data.stream.sequential import Element, Passage, element_bytes, open_passage
from memfit.data.stream.source import Spec

_SAMPLED = 4


def from_generator(
    function: Callable[[], Iterable[Any]],
    *,
    like: Any = None,
    length: int | None = None,
    **options: Unpack[StreamOptions],
) -> Any:
    """The elements that a function without arguments yields each epoch, as a `tf.data.Dataset` within `ram`.

    like: an example element, or tf.TensorSpecs; without it, the first few elements tell.
    length: how many elements there are, if that is known.

    Elements are arrays, or tuples and dicts of them. They are shuffled in a window that fills the RAM that is
    left; with `start`, the function runs through what was used before.

        dataset = memfit.data.from_generator(read_samples, length=10_000, ram="256MiB")
    """
    settings = read_options(**options)
    name = getattr(function, "__name__", repr(function))
    samples = list(islice(_begin(function, name), _SAMPLED))
    if not samples:
        raise NoData(
            name,
            expected="a function that yields elements",
            found="nothing",
            suggestion="next(iter(function()))",
        )
    structure, specs = _describe(samples if like is None else [like])
    passage = Passage(
        begin=lambda: _flat(_begin(function, name), structure, name),
        specs=specs,
        length=length,
        element_bytes=max(element_bytes(tuple(tf.nest.flatten(sample))) for sample in samples),
        name=name,
    )
    return open_passage(passage, settings, lambda *parts: tf.nest.pack_sequence_as(structure, list(parts)))


def _begin(function: Callable[[], Iterable[Any]], name: str) -> Iterator[Any]:
    """A new pass over what a function yields."""
    found = function() if callable(function) else function
    if not callable(function) or not isinstance(found, Iterable):
        raise InvalidStream(
            f"{name} cannot be run through more than once.",
            expected="a function without arguments that returns something to iterate over",
            received=type(function if not callable(function) else found).__name__,
            suggestion="from_generator(lambda: read_samples(path))",
        )
    return iter(found)


def _describe(samples: list[Any]) -> tuple[Any, tuple[Spec, ...]]:
    """The structure of elements, and type and shape of their parts; sizes that differ are open."""
    structure = tf.nest.map_structure(lambda _: None, samples[0])
    flat = [[_spec(part) for part in tf.nest.flatten(sample)] for sample in samples]
    return structure, tuple(_merged(specs) for specs in zip(*flat, strict=True))


def _spec(part: Any) -> Spec:
    if isinstance(part, tf.TensorSpec):
        return Spec(part.dtype, tuple(part.shape.as_list()))
    found = np.asarray(part)
    if found.dtype.kind in "USO":
        return Spec(tf.string, found.shape)
    if isinstance(part, (int, float)) and not isinstance(part, bool):
        return Spec(tf.int32 if isinstance(part, int) else tf.float32)
    return Spec(tf.as_dtype(found.dtype), found.shape)


def _merged(specs: tuple[Spec, ...]) -> Spec:
    shapes = {spec.shape for spec in specs}
    if len({len(shape) for shape in shapes}) > 1:
        return specs[0]  # the element that differs says so when it is read
    return Spec(
        specs[0].dtype,
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)),
    )


def _flat(elements: Iterator[Any], structure: Any, name: str) -> Iterator[Element]:
    for ordinal, element in enumerate(elements):
        try:
            tf.nest.assert_same_structure(structure, element)
        except (ValueError, TypeError) as error:
            raise InvalidStream(
                f"element {ordinal:,} of {name} is built otherwise than the first one.",
                expected=str(tf.nest.map_structure(lambda _: ".", structure)),
                received=str(tf.nest.map_structure(lambda _: ".", element)),
                suggestion="the same tuples and dicts in every element",
            ) from error
        yield tuple(tf.nest.flatten(element))
