"""A step made by hand: a chain of layers, its backward pass, an update."""

from __future__ import annotations

import dataclasses

from memfit.core.records import LayerCall, LayerGraph, LayerTensor, Op, OpGraph, Program, ProgramVariable

MIB = 1 << 20
LAYERS = 8


class _Step:
    """A graph in the making."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: list[int] = []

    def tensor(self, size: int) -> int:
        self.tensors.append(size)
        return len(self.tensors) - 1

    def add(self, op: Op, size: int = 0) -> int:
        """Add an operation that makes one tensor; its number."""
        made = self.tensor(size)
        self.ops.append(dataclasses.replace(op, outputs=(made,)))
        return made


def chain(batch_size: int, activation: int = MIB // 4, weight: int = MIB // 2) -> Program:
    """Layers that each keep so many bytes a sample; stochastic gradient descent."""
    step, size = _Step(), batch_size * activation
    variables = [ProgramVariable(f"layer{n}/kernel", weight, "weight", f"layer{n}") for n in range(LAYERS)]
    variables.append(ProgramVariable("sgd/learning_rate", 4, "optimizer"))
    batch = step.tensor(size)
    handles = [
        step.add(Op("VarHandleOp", role="variable", variable=n, cheap=True)) for n in range(LAYERS + 1)
    ]
    kept = [batch]
    for n in range(LAYERS):
        read = Op("ReadVariableOp", inputs=(handles[n],), role="read", cheap=True, is_float=True)
        weights = step.add(read, weight)
        layer = Op("MatMul", inputs=(kept[-1], weights), layer=f"layer{n}", seconds=1.0, is_float=True)
        kept.append(step.add(layer, size))
    loss = Op("Sub", inputs=(kept[-1],), part="gradients", seconds=0.1, is_float=True)
    gradient = step.add(loss, size)
    rate = step.add(Op("ReadVariableOp", inputs=(handles[-1],), role="read", cheap=True))
    for n in reversed(range(LAYERS)):
        of_layer = Op("MatMul", layer=f"layer{n}", part="gradients", seconds=1.0, is_float=True)
        before = gradient
        gradient = step.add(dataclasses.replace(of_layer, inputs=(before, kept[n + 1])), size)
        of_weights = step.add(dataclasses.replace(of_layer, inputs=(before, kept[n])), weight)
        scaled = Op("Mul", inputs=(of_weights, rate), part="gradients", seconds=0.1, is_float=True)
        move = step.add(scaled, weight)
        step.ops.append(Op("AssignSubVariableOp", inputs=(handles[n], move), role="update", part="gradients"))
    return Program(
        batch_size, "graph", tuple(variables), OpGraph(tuple(step.ops), tuple(step.tensors), (batch,))
    )


def layers_of_chain(batch_size: int) -> LayerGraph:
    size = batch_size * MIB // 4
    calls = [LayerCall(f"layer{n}", (n,), (n,), (n + 1,), size, 2 * size, 1.0) for n in range(LAYERS)]
    return LayerGraph(batch_size, tuple(calls), (LayerTensor(size, saved=True),) * (LAYERS + 1), (LAYERS,))
