"""What is in memory when, read off the operations of a traced forward and backward pass in their order."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Operations whose output is their input's memory under another name.
_ALIASES = frozenset({
    "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "EnsureShape",
    "CheckNumerics",
})  # fmt: skip
# Operations that look at shapes only: TensorFlow knows those before it runs.
_SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike", "BroadcastGradientArgs"})
# What is in memory anyway.
_GIVEN = frozenset({"Placeholder", "Const", "ReadVariableOp", "VarHandleOp", "ResourceGather"})
# Element by element: the output can take the memory of an input that nobody needs any more.
_IN_PLACE = frozenset({
    "Add", "AddN", "AddV2", "BiasAdd", "Cast", "Elu", "EluGrad", "Erf", "Exp", "Log", "Maximum", "Minimum",
    "Mul", "Neg", "Pow", "RealDiv", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "SelectV2", "Selu",
    "SeluGrad", "Sigmoid", "SigmoidGrad", "Softmax", "Sqrt", "Square", "SquaredDifference", "Sub", "Tanh",
    "TanhGrad",
})  # fmt: skip


class Liveness:
    """Which tensors a forward pass saves for the backward pass, and what else is alive at each operation."""

    def __init__(self, operations: list[Any], turn: int, gradients: list[Any]) -> None:
        """`turn` is where the backward pass begins; `gradients` stay until the end."""
        self.turn = turn
        self._operations = operations
        self._places = {operation.name: number for number, operation in enumerate(operations)}
        self._roots: dict[str, Any] = {}
        self._last_use = self._find_last_uses()
        for gradient in gradients:
            part = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            self._last_use[self.root(part).name] = len(operations)
        self._saved = self._find_saved()
        self.working = self._find_working()

    def root(self, tensor: Any) -> Any:
        """The tensor whose memory this one is."""
        found = self._roots.get(tensor.name)
        if found is None:
            found = tensor
            while found.op.type in _ALIASES and found.op.inputs:
                found = found.op.inputs[0]
            self._roots[tensor.name] = found
        return found

    def is_saved(self, tensor: Any) -> bool:
        """Whether the forward pass keeps a tensor for the backward pass."""
        root = self.root(tensor)
        return root.name in self._saved[self._places[root.op.name]]

    def saved_in(self, places: range) -> dict[str, int]:
        """What these operations of the forward pass make and the backward pass uses: names and bytes."""
        return {name: size for place in places for name, size in self._saved[place].items()}

    def _find_last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for number, operation in enumerate(self._operations):
            if operation.type not in _SHAPES:
                for tensor in operation.inputs:
                    last[self.root(tensor).name] = number
        return last

    def _counts(self, tensor: Any) -> bool:
        return tensor.op.type not in _GIVEN and self.root(tensor) is tensor

    def _find_saved(self) -> list[dict[str, int]]:
        return [
            {
                tensor.name: bytes_of(tensor)
                for tensor in operation.outputs
                if number < self.turn
                and self._counts(tensor)
                and self._last_use.get(tensor.name, 0) >= self.turn
            }
            for number, operation in enumerate(self._operations)
        ]

    def _find_working(self) -> list[int]:
        """What is alive at each operation besides what the forward pass has saved."""
        working, now, dying = [], 0, dict[int, int]()
        for number, operation in enumerate(self._operations):
            made = 0
            for tensor in operation.outputs:
                used_until = self._last_use.get(tensor.name)
                if used_until is not None and self._counts(tensor) and tensor.name not in self._saved[number]:
                    made += bytes_of(tensor)
                    dying[used_until] = dying.get(used_until, 0) + bytes_of(tensor)
            freed = dying.pop(number, 0)
            working.append(now + made - (min(made, freed) if operation.type in _IN_PLACE else 0))
            now += made - freed
        return working


def bytes_of(tensor: Any) -> int:
    """The bytes of a tensor, an open dimension counted as one; what is no plain memory counts nothing."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return 0
    count = 1
    for size in tensor.shape:
        count *= size or 1
    return count * int(tensor.dtype.size)
