"""The bytes of a pipeline's elements: from their specs, or by making a few of them by hand.

No iterator of the user's pipeline is ever begun: that would draw the seeds of its shuffles, fill or lock its
caches and run its generators. Instead a few elements are read from the source, and the functions of the
pipeline called on them, as long as these do nothing but compute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.private.tensorflow.datasets import (
    as_element,
    as_it_is,
    as_tensors,
    functions_of,
    graphs_in,
    hides_functions,
    input_datasets,
    is_stateful,
    kind_of,
    settings_of,
    tensors_of,
)

Flat = list[Any]  # an element as a list of tensors

MOST = 3
_SECONDS = 2.0
_MOST_BYTES = 16 << 20

# Elements leave these as they came.
SAME = frozenset(
    (
        *("AssertCardinality", "Cache", "Filter", "IgnoreErrors", "Options", "Prefetch", "Repeat", "Shard"),
        *("Shuffle", "ShuffleAndRepeat", "Skip", "Snapshot", "Take", "TakeWhile", "Unique"),
    )
)
SOURCES_IN_MEMORY = frozenset(("List", "Range", "Tensor", "TensorSlice"))
_SOURCES = SOURCES_IN_MEMORY | {"FixedLengthRecord", "TFRecord", "TextLine"}
_INDEXED = frozenset(("Range", "TensorSlice"))
_PARTS = frozenset(("Shard", "Skip", "Take"))
_BRIEF = _SOURCES | {
    "Concatenate",
    "FlatMap",
    "Map",
    "Options",
    "ParallelMap",
    "Repeat",
    "Skip",
    "Take",
    "Zip",
}
# Marked as stateful by TensorFlow, though what they change is their own.
_HARMLESS = frozenset(
    (
        *("Assert", "If", "Multinomial", "PartitionedCall"),
        *("RandomGamma", "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt"),
        *("ReadVariableOp", "StatefulPartitionedCall", "TruncatedNormal", "VarHandleOp", "While"),
    )
)


def tensor_bytes(dtype: Any, shape: Any) -> int | None:
    """The bytes of a tensor; None for texts and open dimensions."""
    sizes = None if shape.rank is None else shape.as_list()
    if sizes is None or None in sizes or not dtype.size or dtype == tf.string:
        return None
    return int(dtype.size * np.prod(sizes, dtype=np.int64))


def static_bytes(specs: list[Any], batch_size: int | None = None) -> int | None:
    """The bytes of tensors of these specs together; an open first dimension is the batch's."""
    total = 0
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            return None
        shape = spec.shape
        if batch_size is not None and shape.rank and shape[0] is None:
            shape = tf.TensorShape([batch_size, *shape[1:]])
        size = tensor_bytes(spec.dtype, shape)
        if size is None:
            return None
        total += size
    return total


def measured_bytes(element: Any) -> int:
    """The bytes that the tensors of an element take."""
    return sum(map(_measured, tf.nest.flatten(element, expand_composites=True)))


def _measured(tensor: Any) -> int:
    if tensor.dtype == tf.string:
        lengths = np.asarray(tf.strings.length(tensor)).astype(np.int64)
        return int(24 * lengths.size + lengths[lengths > 22].sum())  # short ones are kept in place
    return tensor_bytes(tensor.dtype, tensor.shape) or 0


class ElementSizes:
    """A few elements of each dataset of a pipeline; none where they cannot be had without side effects."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._known: dict[int, list[Flat]] = {}
        self._until = time.monotonic() + _SECONDS

    def largest_bytes(self, dataset: Any) -> int | None:
        """The bytes of the largest of a few elements of a dataset; None if there is none."""
        spec = dataset.element_spec
        if any(isinstance(one, tf.data.DatasetSpec) for one in tf.nest.flatten(spec)):
            return None
        elements = [as_element(spec, flat) for flat in self.of(dataset)]
        return max(map(measured_bytes, elements), default=None)

    def of(self, dataset: Any) -> list[Flat]:
        """A few elements of a dataset."""
        if id(dataset) not in self._known:
            try:
                with tf.device("CPU:0"):
                    found = self._made(dataset)
            except (tf.errors.OpError, ValueError, TypeError, RecursionError):
                found = []  # a pipeline that fails says so when it is run
            self._known[id(dataset)] = found
        return self._known[id(dataset)]

    def _made(self, dataset: Any) -> list[Flat]:
        kind, inputs = kind_of(type(dataset).__name__), input_datasets(dataset)
        if _is_source(dataset):
            return self._read(dataset)
        if kind in SAME:
            return self.of(inputs[0])
        make = _WAYS.get(kind or "")
        return [] if make is None or time.monotonic() > self._until else make(self, dataset, inputs)

    def _read(self, dataset: Any) -> list[Flat]:
        found = _first_ones(dataset)
        self.looked_at += len(found)
        return found

    def _mapped(self, dataset: Any, inputs: list[Any]) -> list[Flat]:
        (function,) = functions_of(dataset)
        if not _only_computes(function.graph):
            return []
        found: list[Flat] = []
        for flat in self.of(inputs[0]):
            if time.monotonic() > self._until:
                break
            found.append(list(function(*flat)))
        return found

    def _flattened(self, dataset: Any, inputs: list[Any]) -> list[Flat]:
        spec = dataset.element_spec
        for (variant,) in self._mapped(dataset, inputs)[:1]:
            return self._read(tf.data.experimental.from_variant(variant, spec))
        return []

    def _batched(self, dataset: Any, inputs: list[Any]) -> list[Flat]:
        elements = self.of(inputs[0])
        size = settings_of(dataset, kind_of(type(dataset).__name__) or "")["size"]
        if not elements or size is None or size * sum(map(_measured, elements[0])) > _MOST_BYTES:
            return []
        whole = [elements[place % len(elements)] for place in range(size)]
        return [[_stacked(parts) for parts in zip(*whole, strict=True)]]

    def _unbatched(self, _: Any, inputs: list[Any]) -> list[Flat]:
        return [
            [part[row] for part in batch]
            for batch in self.of(inputs[0])[:1]
            for row in range(min(MOST, batch[0].shape[0]))
        ]

    def _zipped(self, _: Any, inputs: list[Any]) -> list[Flat]:
        together = zip(*map(self.of, inputs), strict=False)
        return [[tensor for flat in parts for tensor in flat] for parts in together]

    def _joined(self, _: Any, inputs: list[Any]) -> list[Flat]:
        return [flat for one in inputs for flat in self.of(one)[:2]]


_WAYS: dict[str, Callable[[ElementSizes, Any, list[Any]], list[Flat]]] = {
    "Map": ElementSizes._mapped,
    "ParallelMap": ElementSizes._mapped,
    "FlatMap": ElementSizes._flattened,
    "Interleave": ElementSizes._flattened,
    "ParallelInterleave": ElementSizes._flattened,
    "Batch": ElementSizes._batched,
    "ParallelBatch": ElementSizes._batched,
    "PaddedBatch": ElementSizes._batched,
    "Unbatch": ElementSizes._unbatched,
    "Zip": ElementSizes._zipped,
    "Concatenate": ElementSizes._joined,
}


def _first_ones(dataset: Any) -> list[Flat]:
    """A few elements of a source; of all parts of it where that takes no reading."""
    spec, tensors = dataset.element_spec, tensors_of(dataset)
    count = int(dataset.cardinality())
    if count <= MOST or not _is_source(dataset, among=_INDEXED):
        return [as_tensors(spec, element) for element in as_it_is(dataset.take(MOST))]
    places = [count * part // MOST for part in range(1, MOST)] + [count - 1]
    if tensors:
        return [[tensor[place] for tensor in tensors] for place in places]
    return [as_tensors(spec, one) for place in places for one in as_it_is(dataset.skip(place).take(1))]


def _is_source(dataset: Any, among: frozenset[str] = _SOURCES) -> bool:
    """Whether a dataset is a source without state, or a part of one."""
    kind = kind_of(type(dataset).__name__)
    if kind in _PARTS:
        return _is_source(input_datasets(dataset)[0], among)
    return kind in among and all(map(_is_source, input_datasets(dataset)))


def _only_computes(graph: Any) -> bool:
    """Whether a function has no side effects, and runs no pipeline that takes many elements to give a few."""
    operations = [one for inner in graphs_in(graph) for one in inner.get_operations()]
    return not hides_functions(graph) and all(map(_is_harmless, operations))


def _is_harmless(operation: Any) -> bool:
    kind = kind_of(operation.type)
    if kind is not None:
        return kind in _BRIEF
    is_free = not is_stateful(operation) and operation.type != "PyFuncStateless"
    return is_free or operation.type in _HARMLESS


def _stacked(parts: tuple[Any, ...]) -> Any:
    """Tensors as one, the smaller ones padded."""
    if len({tuple(part.shape) for part in parts}) == 1:
        return tf.stack(parts)
    sizes = np.max([part.shape for part in parts], axis=0)
    return tf.stack(
        [tf.pad(part, [(0, n - m) for n, m in zip(sizes, part.shape, strict=True)]) for part in parts]
    )
