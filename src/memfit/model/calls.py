"""A model as a list of calls, which can be run one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from memfit.private.keras.layers import functional_of, nodes_in_order

Tensors = dict[int, Any]  # key of a tensor of the model -> its value
Wrap = Callable[[Any], Callable[..., Any]]  # what Keras calls instead of an operation


class Call:
    """One call of an operation of a model: a layer, a nested model, or a bare function."""

    def __init__(self, node: Any, position: int) -> None:
        self.operation = node.operation
        self.position = position
        self.inputs = tuple(dict.fromkeys(id(tensor) for tensor in node.input_tensors))
        self.outputs = tuple(id(tensor) for tensor in node.outputs)
        self._arguments = node.arguments

    @property
    def name(self) -> str:
        """The name of the operation."""
        return str(self.operation.name)

    @property
    def nested(self) -> Any:
        """The model that is called, if it has calls of its own."""
        return functional_of(self.operation)

    def run(self, tensors: Tensors, wrap: Wrap) -> None:
        """Run it on these tensors, and add what it returns."""
        arguments, options = self._arguments.fill_in(tensors)
        returned = wrap(self.operation)(*arguments, **options)
        tensors.update(zip(self.outputs, keras.tree.flatten(returned), strict=False))


def calls_of(functional: Any) -> list[Call]:
    """The calls of a model in the order in which Keras makes them; positions are what cuts refer to."""
    return [Call(node, position) for position, node in enumerate(nodes_in_order(functional))]


def in_backward_order(calls: list[Call]) -> list[Call]:
    """Calls in the order in which a tape goes back through them: from the end, down the last input first."""
    uses: dict[int, int] = {}
    for call in calls:
        for key in call.inputs:
            uses[key] = uses.get(key, 0) + 1
    makers = {key: call for call in calls for key in call.outputs}
    missing = {id(call): sum(key in uses for key in call.outputs) for call in calls}
    ready = [call for call in calls if missing[id(call)] == 0]
    order = []
    while ready:
        call = ready.pop()
        order.append(call)
        for key in call.inputs:
            uses[key] -= 1
            maker = makers.get(key)
            if uses[key] == 0 and maker is not None:
                missing[id(maker)] -= 1
                if missing[id(maker)] == 0:
                    ready.append(maker)
    return order


def input_keys(functional: Any) -> list[int]:
    """The keys of a model's inputs."""
    return [id(tensor) for tensor in functional.inputs]


def output_keys(functional: Any) -> list[int]:
    """The keys of a model's outputs."""
    return [id(tensor) for tensor in functional.outputs]
