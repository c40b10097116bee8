"""Lists of tensors in graphs: TensorFlow forgets the shapes of what they hold where a loop begins."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Shape = tuple[int, ...]

_GROW = ("TensorListPushBack", "TensorListSetItem")
_SAME = ("Identity", "TensorListPopBack", *_GROW)  # what they return first holds what they are given first
_ITEMS = ("TensorListPopBack", "TensorListGetItem")


def shapes_of_items(operations: list[Any], known: dict[str, Shape]) -> dict[str, Shape]:
    """The shapes of what the lists of a graph hold, by the names of tensors; some are known from outside."""
    found = dict(known)

    def note(tensor: Any, shape: Shape | None) -> None:
        if shape is not None:
            found[tensor.name] = shape

    for operation in operations:
        kind, taken, made = operation.type, operation.inputs, operation.outputs
        if kind in ("EmptyTensorList", "TensorListReserve"):
            note(made[0], _static_shape(taken[0]))
        elif kind == "TensorListFromTensor":
            note(made[0], _shape(taken[0].shape[1:]))
        elif kind in _SAME and made and made[0].dtype == tf.variant:
            pushed = _shape(taken[-1].shape) if kind in _GROW else None
            note(made[0], found.get(taken[0].name) or pushed)
    return found


def say_shapes_of_items(graph_def: Any, arguments: dict[str, Shape]) -> None:
    """Say the shape of whatever is taken out of a list."""
    nodes = {node.name: node for node in graph_def.node}

    def shape_of(name: str) -> Shape | None:
        name = name.partition(":")[0]
        while name not in arguments:
            node = nodes.get(name)
            if node is None or node.op not in _SAME:
                return None
            name = node.input[0].partition(":")[0]
        return arguments[name]

    renamed = dict[str, str]()
    for node in list(graph_def.node):
        shape = shape_of(node.input[0]) if node.op in _ITEMS else None
        if shape is not None:
            item = f"{node.name}:1" if node.op == "TensorListPopBack" else node.name
            said = graph_def.node.add(name=f"{node.name}/of_shape", op="EnsureShape", input=[item])
            said.attr["T"].CopyFrom(node.attr["element_dtype"])
            said.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
            renamed[item] = said.name
    for node in graph_def.node:
        if node.op != "EnsureShape":
            node.input[:] = [renamed.get(name, name) for name in node.input]


def _static_shape(tensor: Any) -> Shape | None:
    value = tf.get_static_value(tensor)
    if value is None or value.ndim != 1 or (value < 0).any():
        return None
    return tuple(int(size) for size in value)


def _shape(shape: Any) -> Shape | None:
    return tuple(shape) if shape.rank is not None and shape.is_fully_defined() else None
