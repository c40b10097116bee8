"""The number of times that a loop of a graph runs, where the graph says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow as tf

_MOST = 1 << 20
_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "Less": lambda a, b: a < b,
    "LessEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b,
    "GreaterEqual": lambda a, b: a >= b,
    "NotEqual": lambda a, b: a != b,
    "LogicalAnd": lambda a, b: a and b,
    "LogicalOr": lambda a, b: a or b,
    "AddV2": lambda a, b: a + b,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Minimum": min,
    "Maximum": max,
}
_PASS = frozenset({"Identity", "StopGradient", "ToBool", "Reshape", "Squeeze", "EnsureShape", "Cast"})


def trips(operation: Any, functions: dict[str, Any], known: dict[str, int]) -> int | None:
    """The number of times that a While runs its body; None where that depends on data.

    Its numbers are followed through condition and body, time after time, as far as they are known. What they
    are in the end goes into `known`, by the names of tensors: the way back of a loop counts down from there.
    """
    values: list[Any] = [_scalar(tensor, known) for tensor in operation.inputs]
    condition = _Arithmetic(functions[operation.get_attr("cond").name])
    body = _Arithmetic(functions[operation.get_attr("body").name])
    for turn in range(_MOST):
        goes_on = condition.outputs(values)[0]
        if goes_on is None:
            return None
        if not goes_on:
            ends = zip(operation.outputs, values, strict=True)
            known.update((tensor.name, value) for tensor, value in ends if value is not None)
            return turn
        values = body.outputs(values)
    return None


def _scalar(tensor: Any, known: dict[str, int]) -> Any:
    while tensor.op.type in _PASS and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    if tensor.name in known:
        return known[tensor.name]
    if not (tensor.dtype.is_integer or tensor.dtype.is_bool) or tensor.shape.rank is None:
        return None
    value = tf.get_static_value(tensor)
    return value.item() if value is not None and value.size == 1 else None


class _Arithmetic:
    """The part of a function that computes with single whole numbers."""

    def __init__(self, function: Any) -> None:
        self._nodes = {node.name: node for node in function.node_def}
        self._arguments = [arg.name for arg in function.signature.input_arg]
        self._returned = [function.ret[arg.name] for arg in function.signature.output_arg]

    def outputs(self, inputs: list[Any]) -> list[Any]:
        """The values that the function returns for these numbers; None stands for an unknown one."""
        known: dict[str, Any] = dict(zip(self._arguments, inputs, strict=True))
        return [self._value(name, known) for name in self._returned]

    def _value(self, tensor: str, known: dict[str, Any]) -> Any:
        name = tensor.partition(":")[0]
        if name not in known:
            known[name] = None  # until it is found, and for what is not
            node = self._nodes.get(name)
            if node is not None:
                known[name] = self._computed(node, known)
        return known[name]

    def _computed(self, node: Any, known: dict[str, Any]) -> Any:
        if node.op == "Const":
            value = tf.make_ndarray(node.attr["value"].tensor)
            return value.item() if value.size == 1 and value.dtype.kind in "iub" else None
        taken = [name for name in node.input if not name.startswith("^")]
        if node.op in _PASS:
            return self._value(taken[0], known)
        if node.op == "LogicalNot":
            value = self._value(taken[0], known)
            return None if value is None else not value
        if node.op in _COMPUTE:
            left, right = (self._value(name, known) for name in taken)
            return None if left is None or right is None else _COMPUTE[node.op](left, right)
        return None


Shape = tuple[int, ...]

_GROW = ("TensorListPushBack", "TensorListSetItem")
# What these return first holds what they are given first.
_SAME = ("Identity", "TensorListPopBack", "ZerosLike", "AddN", "AddV2", *_GROW)
_ITEMS = ("TensorListPopBack", "TensorListGetItem")


@dataclass(frozen=True)
class Items:
    """The items of a tensor list: their shape and type, and their number, if it is made for so many."""

    shape: Shape | None = None
    dtype: Any = None
    count: int | None = None

    @property
    def bytes_of_one(self) -> int:
        """The bytes of one of them, none where that is not known."""
        return 0 if self.shape is None or self.dtype is None else prod(self.shape) * int(self.dtype.size)


def items_of(operation: Any, known: dict[str, Items]) -> Items | None:
    """The items of the list that an operation makes, where they are known; others are known by name."""
    kind, taken = operation.type, operation.inputs
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
