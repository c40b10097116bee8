"""Levers on a step made by hand: a chain of layers, its backward pass, an update."""

from __future__ import annotations

import dataclasses

from memfit.estimates.peaks import estimate
from memfit.plans.micro_batches import in_micro_batches
from memfit.plans.regions import regions_of
from memfit.plans.remats import rematerialised
from memfit.plans.sizes import Sizes
from memfit.plans.times import seconds_of
from memfit.records import LayerCall, LayerGraph, LayerTensor, Op, OpGraph, Program, ProgramVariable

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
        weights = step.add(Op("ReadVariableOp", inputs=(handles[n],), role="read", cheap=True))
        layer = Op("MatMul", inputs=(kept[-1], weights), layer=f"layer{n}", seconds=1.0)
        kept.append(step.add(layer, size))
    gradient = step.add(Op("Sub", inputs=(kept[-1],), part="gradients", seconds=0.1), size)
    rate = step.add(Op("ReadVariableOp", inputs=(handles[-1],), role="read", cheap=True))
    for n in reversed(range(LAYERS)):
        of_layer = Op("MatMul", layer=f"layer{n}", part="gradients", seconds=1.0)
        before = gradient
        gradient = step.add(dataclasses.replace(of_layer, inputs=(before, kept[n + 1])), size)
        of_weights = step.add(dataclasses.replace(of_layer, inputs=(before, kept[n])), weight)
        move = step.add(Op("Mul", inputs=(of_weights, rate), part="gradients", seconds=0.1), weight)
        step.ops.append(Op("AssignSubVariableOp", inputs=(handles[n], move), role="update", part="gradients"))
    return Program(
        batch_size, "graph", tuple(variables), OpGraph(tuple(step.ops), tuple(step.tensors), (batch,))
    )


def layers_of_chain(batch_size: int) -> LayerGraph:
    size = batch_size * MIB // 4
    calls = [LayerCall(f"layer{n}", (n,), (n,), (n + 1,), size, 2 * size, 1.0) for n in range(LAYERS)]
    return LayerGraph(batch_size, tuple(calls), (LayerTensor(size, saved=True),) * (LAYERS + 1), (LAYERS,))


def peak_of(program: Program) -> int:
    return estimate(program, workers=1).peak_bytes


def test_the_update_begins_where_the_optimizer_is_read() -> None:
    program = chain(4)
    regions = regions_of(program)
    kinds = [program.graph.ops[number].kind for number in sorted(regions.update)]
    assert kinds.count("Mul") == kinds.count("AssignSubVariableOp") == LAYERS
    assert "MatMul" not in kinds
    assert [program.graph.tensors[tensor] for tensor in regions.gradients] == [MIB // 2] * LAYERS


def test_micro_batches_need_less_for_activations_and_keep_all_gradients() -> None:
    whole = peak_of(chain(64))
    split = in_micro_batches(chain(16), 64)
    assert split.batch_size == 64
    assert peak_of(split) < 0.5 * whole
    # All gradients of the batch so far, and all of the micro-batch until they are added.
    assert peak_of(split) > peak_of(chain(16)) + LAYERS * MIB // 2


def test_a_batch_that_is_one_micro_batch_needs_what_it_needs_in_two_phases() -> None:
    split, whole = in_micro_batches(chain(16), 16), chain(16)
    assert peak_of(whole) <= peak_of(split) <= peak_of(whole) + LAYERS * MIB // 2 + 16 * MIB


def test_segments_are_computed_again_and_their_activations_not_kept() -> None:
    program, layers = chain(64), layers_of_chain(64)
    again = rematerialised(program, layers, [(0, 3), (3, 6)])
    assert peak_of(again) < 0.85 * peak_of(program)
    assert _seconds(again) == _seconds(program) + 6  # all layers in them once more


def test_a_program_at_two_sizes_is_known_at_all() -> None:
    sizes = Sizes(chain(8), chain(32))
    assert sizes.at(8) is sizes.smaller
    assert sizes.at(20) == chain(20)
    assert sizes.at(64) == chain(64)


def test_no_segments_change_nothing() -> None:
    program = chain(8)
    assert rematerialised(program, layers_of_chain(8), []) == program


def test_levers_work_together() -> None:
    again = rematerialised(chain(16), layers_of_chain(16), [(0, 3), (3, 6)])
    both = in_micro_batches(again, 64)
    assert peak_of(both) < peak_of(in_micro_batches(chain(16), 64))


def _seconds(program: Program) -> float:
    return round(seconds_of(program), 6)
