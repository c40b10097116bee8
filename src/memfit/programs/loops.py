"""How often a loop of a graph runs, where the graph says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

LOOPS = ("While", "StatelessWhile")

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
        """What it returns for these numbers; None stands for what is not known."""
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
