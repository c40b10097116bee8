"""A model's calls with what each costs: bytes that it saves for the backward pass, bytes that it works with.

The model is traced once for one batch size, call by call, forward and then backward; nothing is computed and
nothing of the model changes. The bytes are read off the operations of that graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from memfit.core.records import LayerCall, LayerGraph, LayerTensor
from memfit.graph.costs import cost_of
from memfit.model.calls import Call, Tensors, Wrap, calls_of, input_keys, output_keys
from memfit.model.snapshots import Recording, draws_put_back
from memfit.model.traced_functions import operations_so_far, traced, why_not_repeatable
from memfit.private.keras.global_state import borrowed_global_seed
from memfit.private.keras.layers import functional_of, instead_of_running_through


@dataclass
class _Traced:
    """One call in the traced graph: which operations are its forward and its backward pass."""

    call: Call
    path: tuple[int, ...]
    inputs: list[Any]
    forward: range = range(0)
    backward: range = range(0)
    tape: Any = None
    outputs: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    @property
    def watched(self) -> list[Any]:
        return [tensor for tensor in self.inputs if tensor.dtype.is_floating]


def layer_graph(model: Any, specs: Any) -> LayerGraph:
    """The calls of a Functional or Sequential model on a batch like this, with what each costs.

    `specs` are in any structure that the model takes, such as a dictionary of names for a list of inputs.
    """
    functional = functional_of(model)
    tracing = _Tracing()

    def passes(inputs: Any) -> list[Any]:
        with tracing.instead_of(functional, ()), Recording():
            outputs = model(inputs, training=True)
        flat: list[Any] = keras.tree.flatten(outputs)
        tracing.go_back(flat)
        return flat

    with draws_put_back(), borrowed_global_seed():
        concrete = traced(passes, specs)
    reading = _Reading(concrete.graph.get_operations(), tracing)
    first = next(spec for spec in keras.tree.flatten(specs) if spec is not None)
    return reading.layer_graph(concrete.outputs, int(first.shape[0]))


class _Tracing:
    """Runs a model call by call, each under a tape of its own, and then back."""

    def __init__(self) -> None:
        self.calls: list[_Traced] = []
        self.gradients: list[Any] = []  # of weights, which stay until the update

    def instead_of(self, functional: Any, path: tuple[int, ...]) -> Any:
        """A context in which a graph of layers is run by this."""
        calls = calls_of(functional)
        operations = [call.operation for call in calls]

        def run(inputs: Any, wrap: Wrap) -> Any:
            tensors = dict(zip(input_keys(functional), keras.tree.flatten(inputs), strict=True))
            for call in calls:
                nested = call.nested
                if nested is not None and operations.count(call.operation) == 1:
                    with self.instead_of(nested, (*path, call.position)):
                        call.run(tensors, wrap)
                else:
                    self._run(call, (*path, call.position), tensors, wrap)
            outputs = [tensors[key] for key in output_keys(functional)]
            return keras.tree.pack_sequence_as(functional.output, outputs)

        return instead_of_running_through(functional, run)

    def _run(self, call: Call, path: tuple[int, ...], tensors: Tensors, wrap: Wrap) -> None:
        given = [tensors[key] for key in call.inputs if isinstance(tensors[key], tf.Tensor)]
        one = _Traced(call, path, given)
        start = operations_so_far()
        with tf.GradientTape() as one.tape:
            one.tape.watch(one.watched)
            call.run(tensors, wrap)
        one.forward = range(start, operations_so_far())
        one.weights = list(one.tape.watched_variables())
        one.outputs = [tensors[key] for key in call.outputs if isinstance(tensors[key], tf.Tensor)]
        self.calls.append(one)

    def go_back(self, outputs: list[Any]) -> None:
        """The backward pass, call by call."""
        upstream = {id(output): tf.ones_like(output) for output in outputs if output.dtype.is_floating}
        for one in reversed(self.calls):
            start = operations_so_far()
            reached = [output for output in one.outputs if id(output) in upstream]
            if reached:
                found = one.tape.gradient(
                    reached,
                    [*one.watched, *one.weights],
                    output_gradients=[upstream.pop(id(output)) for output in reached],
                )
                for tensor, gradient in zip(one.watched, found, strict=False):
                    if gradient is not None:
                        dense = tf.convert_to_tensor(gradient)
                        known = upstream.get(id(tensor))
                        upstream[id(tensor)] = dense if known is None else known + dense
                self.gradients.extend(g for g in found[len(one.watched) :] if g is not None)
            one.tape = None
            one.backward = range(start, operations_so_far())


class _Reading:
    """Reads costs off the traced operations."""

    def __init__(self, operations: list[Any], tracing: _Tracing) -> None:
        self._operations = operations
        self._traced = tracing.calls
        turn = min((one.backward.start for one in tracing.calls), default=len(operations))
        self._liveness = Liveness(operations, turn, tracing.gradients)

    def layer_graph(self, outputs: list[Any], batch_size: int) -> LayerGraph:
        """The LayerGraph of the traced calls, with their costs."""
        tensors = [tensor for one in self._traced for tensor in (*one.inputs, *one.outputs)]
        known = {tensor.name: tensor for tensor in tensors}
        numbers = {name: number for number, name in enumerate(known)}
        made = {tensor.name for one in self._traced for tensor in one.outputs}
        return LayerGraph(
            batch_size=batch_size,
            calls=tuple(self._layer_call(one, numbers) for one in self._traced),
            tensors=tuple(
                LayerTensor(bytes_of(tensor), self._liveness.is_saved(tensor))
                if name in made
                else LayerTensor(0, saved=True)
                for name, tensor in known.items()
            ),
            outputs=tuple(numbers[o.name] for o in map(_returned, outputs) if o.name in numbers),
        )

    def _layer_call(self, one: _Traced, numbers: dict[str, int]) -> LayerCall:
        forward = [self._operations[place] for place in one.forward]
        working = self._liveness.working
        return LayerCall(
            name=one.call.name,
            path=one.path,
            inputs=tuple(numbers[tensor.name] for tensor in one.inputs),
            outputs=tuple(numbers[tensor.name] for tensor in one.outputs),
            saved_bytes=sum(self._liveness.saved_in(one.forward).values()),
            working_bytes=max((working[place] for place in (*one.forward, *one.backward)), default=0),
            cost=sum(cost_of(operation) for operation in forward),
            why_not=why_not_repeatable(forward),
        )


def _returned(output: Any) -> Any:
    """The computed tensor behind an output of a traced function, which is a copy by name."""
    return output.op.inputs[0] if output.op.type == "Identity" else output


# Operations whose output is their input's memory under another name.
_ALIASES = frozenset({
    "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "EnsureShape",
    "CheckNumerics",
})  # fmt: skip
# Operations that look at shapes only: TensorFlow knows those before it runs.
_SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike", "BroadcastGradientArgs"})
# What is in memory anyway.
_GIVEN = frozenset({"Placeholder", "Const", "ReadVariableOp", "VarHandleOp", "ResourceGather"})
# Element by element: the output can take the memory of an input that is not needed any more.
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
        """The outputs of these forward operations that the backward pass uses: names and bytes."""
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
        """The bytes alive at each operation besides those that the forward pass has saved."""
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
