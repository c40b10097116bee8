"""dataset -> steps: the transformations of a pipeline from its source on, with what is known of each.

Dataset objects are looked at, not the serialised graph: that would copy every array inside the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memfit.data.inspect.element_sizes import SAME, ElementSizes, static_bytes, tensor_bytes
from memfit.private.tensorflow.datasets import (
    functions_of,
    graphs_in,
    input_datasets,
    kind_of,
    settings_of,
    settings_of_operation,
    specs_of_operation,
    unwrapped,
)
from memfit.private.tensorflow.function_graphs import CALLS_OF_PYTHON

BATCHES = frozenset(("Batch", "ParallelBatch", "PaddedBatch"))
_KEEPS_BATCHES = SAME | {"Map", "ParallelMap"}
_NAMES = {
    "Tensor": "from_tensors",
    "TensorSlice": "from_tensor_slices",
    "ParallelBatch": "batch",
    "ParallelInterleave": "interleave",
    "ParallelMap": "map",
    "TFRecord": "TFRecordDataset",
}


@dataclass(frozen=True)
class Function:
    """The memory inside a function of the user's, and whether it calls Python."""

    constants_bytes: int = 0  # arrays that became part of its graph
    captured_bytes: int = 0  # tensors that it uses from outside
    working_bytes: int = 0  # the largest tensor that it makes on its way
    calls_python: bool = False


@dataclass(frozen=True)
class Step:
    """One transformation."""

    kind: str
    place: int
    inputs: tuple[Step, ...]
    settings: dict[str, int | None]
    element_bytes: int | None
    components: int  # tensors of an element
    batch_size: int | None  # where elements are batches
    signature: str = ""  # types and shapes of elements
    is_measured: bool = False  # whether its size is that of the largest of a few elements
    count: int | None = None  # elements; None where it is not known
    is_endless: bool = False
    function: Function = Function()
    within: tuple[Step, ...] = ()  # transformations inside its functions
    dataset: Any = None  # None inside functions

    @property
    def name(self) -> str:
        """As its method is called, where there is one."""
        if self.kind in _NAMES:
            return _NAMES[self.kind]
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", self.kind).lower()

    @property
    def before(self) -> Step | None:
        """The step whose elements it takes, if there is only one."""
        return self.inputs[0] if len(self.inputs) == 1 else None


def read_steps(dataset: Any, samples: ElementSizes | None) -> list[Step]:
    """All steps of a pipeline, each after those that it takes elements from; nothing below memfit's own."""
    steps: dict[int, Step] = {}
    waiting = [unwrapped(dataset)]
    while waiting:
        current = waiting[-1]
        before = _inputs(current)
        missing = [one for one in before if id(one) not in steps]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if id(current) not in steps:
            inputs = tuple(steps[id(one)] for one in before)
            steps[id(current)] = _step(current, inputs, len(steps) + 1, samples)
    return list(steps.values())


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is one of memfit's own."""
    return hasattr(dataset, "memfit_stream")


def _inputs(dataset: Any) -> list[Any]:
    if is_stream(dataset):
        return []
    try:
        return input_datasets(dataset)
    except (AttributeError, NotImplementedError):
        return []


def _step(dataset: Any, inputs: tuple[Step, ...], place: int, samples: ElementSizes | None) -> Step:
    if is_stream(dataset):
        return _stream_step(dataset, place)
    kind = kind_of(type(dataset).__name__) or type(dataset).__name__
    specs, settings = tf.nest.flatten(dataset.element_spec), settings_of(dataset, kind)
    batch_size = _batch_size(kind, settings, inputs)
    element_bytes = _element_bytes(specs, kind, batch_size, inputs)
    if element_bytes is None and samples is not None:
        element_bytes = samples.largest_bytes(dataset)
    signature, functions = _signature(specs), functions_of(dataset)
    known = {} if element_bytes is None else {signature: element_bytes}
    within = tuple(step for one in functions for step in _steps_within(one.graph, place, known))
    if element_bytes is None:
        element_bytes = next((one.element_bytes for one in within if one.signature == signature), None)
    count = int(dataset.cardinality())
    return Step(
        kind=kind,
        place=place,
        inputs=inputs,
        settings=settings,
        element_bytes=element_bytes,
        components=len(specs),
        batch_size=batch_size,
        signature=signature,
        is_measured=element_bytes is not None and static_bytes(specs, batch_size) is None,
        count=count if count >= 0 else None,
        is_endless=count == tf.data.INFINITE_CARDINALITY,
        function=_look_into(functions),
        within=within,
        dataset=dataset,
    )


def _stream_step(dataset: Any, place: int) -> Step:
    stream, count = dataset.memfit_stream, int(dataset.cardinality())
    size, parts = stream.options.batch_size, len(tf.nest.flatten(dataset.element_spec))
    element_bytes = stream.sizes.element_bytes * (size or 1)
    known = count if count >= 0 else None
    return Step("Stream", place, (), {}, element_bytes, parts, size, count=known, dataset=dataset)


def _batch_size(kind: str, settings: dict[str, int | None], inputs: tuple[Step, ...]) -> int | None:
    if kind in BATCHES:
        return settings.get("size")
    return inputs[0].batch_size if kind in _KEEPS_BATCHES and inputs else None


def _element_bytes(
    specs: list[Any], kind: str, batch_size: int | None, inputs: tuple[Step, ...]
) -> int | None:
    """As far as it can be known without an element."""
    found = static_bytes(specs, batch_size)
    if found is not None or len(inputs) != 1 or inputs[0].element_bytes is None:
        return found
    if kind in BATCHES and batch_size is not None:
        return batch_size * inputs[0].element_bytes
    return inputs[0].element_bytes if kind in SAME else None


def _signature(specs: list[Any]) -> str:
    return str([(spec.dtype, spec.shape) if isinstance(spec, tf.TensorSpec) else spec for spec in specs])


def _look_into(functions: list[Any]) -> Function:
    graphs = [graph for function in functions for graph in graphs_in(function.graph)]
    operations = [operation for graph in graphs for operation in graph.get_operations()]
    captured = [tensor for function in functions for tensor in function.captured_inputs]
    made = [one for one in operations if one.type not in ("Const", "Placeholder")]
    return Function(
        constants_bytes=sum(_output_bytes(one) for one in operations if one.type == "Const"),
        captured_bytes=sum(tensor_bytes(tensor.dtype, tensor.shape) or 0 for tensor in captured),
        working_bytes=max(map(_output_bytes, made), default=0),
        calls_python=any(one.type in CALLS_OF_PYTHON for one in operations),
    )


def _output_bytes(operation: Any) -> int:
    return sum(tensor_bytes(output.dtype, output.shape) or 0 for output in operation.outputs)


def _steps_within(graph: Any, place: int, known: dict[str, int]) -> Iterator[Step]:
    """The transformations of pipelines that a function makes; `known` are sizes of elements by signature."""
    for inner in graphs_in(graph):
        steps: dict[str, Step] = {}
        for operation in inner.get_operations():
            kind = kind_of(operation.type)
            if kind is None:
                continue
            inputs = tuple(steps[one.op.name] for one in operation.inputs if one.op.name in steps)
            steps[operation.name] = _step_within(operation, kind, inputs, place, known)
        yield from steps.values()


def _step_within(
    operation: Any, kind: str, inputs: tuple[Step, ...], place: int, known: dict[str, int]
) -> Step:
    specs = specs_of_operation(operation)
    signature = _signature(specs)
    settings = settings_of_operation(operation, kind)
    batch_size = _batch_size(kind, settings, inputs)
    element_bytes = _element_bytes(specs, kind, batch_size, inputs)
    return Step(
        kind=kind,
        place=place,
        inputs=inputs,
        settings=settings,
        element_bytes=known.get(signature) if element_bytes is None else element_bytes,
        components=len(specs),
        batch_size=batch_size,
        signature=signature,
    )
