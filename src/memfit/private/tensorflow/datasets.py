"""The transformations inside a `tf.data.Dataset`, and their settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.private.tensorflow.function_graphs import CALLS_OF_PYTHON


def batch_size_of(dataset: Any) -> int | None:
    """The size of the batches that a dataset makes, but for the last; None where it does not say."""
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        inputs = dataset._inputs()
        dataset = inputs[0] if len(inputs) == 1 else None
    return None


# Where classes of datasets, and operations in graphs, keep what was asked of them.
_SETTINGS: dict[str, dict[str, tuple[str, int]]] = {
    "Shuffle": {"size": ("_buffer_size", 1)},
    "Cache": {"file": ("_filename", 1)},
    "ShuffleAndRepeat": {"size": ("_buffer_size", 1)},
    "Prefetch": {"size": ("_buffer_size", 1)},
    "Batch": {"size": ("_batch_size", 1)},
    "ParallelBatch": {"size": ("_batch_size", 1), "calls": ("_num_parallel_calls", 2)},
    "PaddedBatch": {"size": ("_batch_size", 1)},
    "Window": {"size": ("_size", 1)},
    "ParallelMap": {"calls": ("_num_parallel_calls", -1)},
    "Interleave": {"cycle": ("_cycle_length", -2), "block": ("_block_length", -1)},
    "ParallelInterleave": {
        "cycle": ("_cycle_length", -5),
        "block": ("_block_length", -4),
        "buffer": ("_buffer_output_elements", -3),
        "ahead": ("_prefetch_input_elements", -2),
    },
}


def kind_of(name: str) -> str | None:
    """Shuffle for _ShuffleDataset and ShuffleDatasetV3: the transformation behind a class or an operation."""
    found = re.fullmatch(r"_*(\w+?)Dataset(V\d+)?", name)
    return None if found is None else found[1]


def unwrapped(dataset: Any) -> Any:
    """A dataset without the coat that TensorFlow 1 puts around it."""
    while "_dataset" in vars(dataset):
        dataset = dataset._dataset
    return dataset


def input_datasets(dataset: Any) -> list[Any]:
    """The datasets that a dataset is made from."""
    return [unwrapped(one) for one in dataset._inputs()]


def settings_of(dataset: Any, kind: str) -> dict[str, int | None]:
    """The numbers that a transformation was given; None where they are not known before it runs."""
    names = _SETTINGS.get(kind, {})
    return {name: _number(getattr(dataset, attribute, None)) for name, (attribute, _) in names.items()}


def settings_of_operation(operation: Any, kind: str) -> dict[str, int | None]:
    """The same of a transformation inside a function."""
    names, inputs = _SETTINGS.get(kind, {}), operation.inputs
    return {name: _number(inputs[place]) for name, (_, place) in names.items() if len(inputs) > abs(place)}


def specs_of_operation(operation: Any) -> list[Any]:
    """Types and shapes of the elements of a transformation inside a function; none where it does not say."""
    attributes = operation.node_def.attr
    name = "output_types" if "output_types" in attributes else "Toutput_types"
    if name not in attributes or "output_shapes" not in attributes:
        return []
    types, shapes = operation.get_attr(name), operation.get_attr("output_shapes")
    return [tf.TensorSpec(shape, kind) for kind, shape in zip(types, shapes, strict=True)]


def _number(value: Any) -> int | None:
    found = None if value is None else tf.get_static_value(value)
    if found is None:
        return None
    number = np.asarray(found).item()
    return len(number) if isinstance(number, bytes) else int(number)  # the name of a file, or none


def window_size_of(dataset: Any) -> int | None:
    """The window size of `group_by_window`; None where each key has its own size."""
    output = dataset._window_size_func.function.outputs[0]
    while output.op.type == "Identity":
        output = output.op.inputs[0]
    return _number(output)


def tensors_of(dataset: Any) -> list[Any]:
    """The arrays that a source of arrays holds."""
    return list(getattr(dataset, "_tensors", ()))


def functions_of(dataset: Any) -> list[Any]:
    """The traced functions of a transformation."""
    found = (getattr(value, "function", None) for value in vars(dataset).values())
    return [function for function in found if hasattr(function, "graph")]


def graphs_in(graph: Any) -> Iterator[Any]:
    """A function's graph, and those of all functions that it calls, as far as they can be looked at."""
    yield graph
    for function in graph._functions.values():
        if _is_kept(function):
            yield function.graph


def hides_functions(graph: Any) -> bool:
    """Whether a function calls others that cannot be looked at."""
    return not all(map(_is_kept, graph._functions.values()))


def _is_kept(function: Any) -> bool:
    # Otherwise asking for its graph would build it from a copy of all its constants.
    return getattr(function, "_cached_graph", None) is not None


def runs_python(dataset: Any) -> bool:
    """Whether a pipeline calls functions of Python, such as a generator, as far as it can be looked at."""
    graphs = (graph for function in functions_of(dataset) for graph in graphs_in(function.graph))
    own = any(one.type in CALLS_OF_PYTHON for graph in graphs for one in graph.get_operations())
    return own or any(map(runs_python, input_datasets(dataset)))


def is_stateful(operation: Any) -> bool:
    """Whether an operation does more than to compute its outputs."""
    return bool(operation.op_def.is_stateful)


def as_tensors(spec: Any, element: Any) -> list[Any]:
    """An element as the flat list of tensors that functions of tf.data take."""
    from tensorflow.python.data.util import structure

    return list(structure.to_tensor_list(spec, element))


def as_element(spec: Any, tensors: list[Any]) -> Any:
    """The element that a flat list of tensors stands for."""
    from tensorflow.python.data.util import structure

    return structure.from_tensor_list(spec, tensors)


def as_it_is(dataset: Any) -> Any:
    """The same elements, from a pipeline that TensorFlow does not rewrite: that would copy its arrays."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)
