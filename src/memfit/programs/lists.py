"""Lists of tensors in graphs: TensorFlow forgets what they hold where a loop begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow as tf

Shape = tuple[int, ...]

_GROW = ("TensorListPushBack", "TensorListSetItem")
# What these return first holds what they are given first.
_SAME = ("Identity", "TensorListPopBack", "ZerosLike", "AddN", "AddV2", *_GROW)
_ITEMS = ("TensorListPopBack", "TensorListGetItem")


@dataclass(frozen=True)
class Items:
    """What a list holds: tensors of a shape and type, and how many, if it is made for so many."""

    shape: Shape | None = None
    dtype: Any = None
    count: int | None = None

    @property
    def bytes_of_one(self) -> int:
        """The bytes of one of them, none where that is not known."""
        return 0 if self.shape is None or self.dtype is None else prod(self.shape) * int(self.dtype.size)


def items_of(operation: Any, known: dict[str, Items]) -> Items | None:
    """What the list holds that an operation makes first, if it makes one; others are known by name."""
    kind, taken, made = operation.type, operation.inputs, operation.outputs
    if not made or made[0].dtype != tf.variant:
        return None
    if kind in ("EmptyTensorList", "TensorListReserve"):
        count = tf.get_static_value(taken[1]) if kind == "TensorListReserve" else None
        dtype = operation.get_attr("element_dtype")
        return Items(_static_shape(taken[0]), dtype, None if count is None else int(count))
    if kind == "TensorListFromTensor":
        shape = _shape(taken[0].shape)
        return None if shape is None else Items(shape[1:], taken[0].dtype, shape[0])
    if kind in _SAME:
        given = [known[tensor.name] for tensor in taken if tensor.name in known]
        if kind in _GROW:
            given.append(Items(_shape(taken[-1].shape), taken[-1].dtype))
        return Items(
            shape=_first(items.shape for items in given),
            dtype=_first(items.dtype for items in given),
            count=_first(items.count for items in given),
        )
    return None


def say_shapes_of_items(graph_def: Any, arguments: dict[str, Items]) -> None:
    """Say the shape of whatever is taken out of a list that comes from outside."""
    nodes = {node.name: node for node in graph_def.node}

    def shape_of(name: str) -> Shape | None:
        name = name.partition(":")[0]
        while name not in arguments:
            node = nodes.get(name)
            if node is None or node.op not in _SAME:
                return None
            name = node.input[0].partition(":")[0]
        return arguments[name].shape

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


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)
