"""Levers on a step made by hand."""

from __future__ import annotations

from chains import LAYERS, MIB, chain, layers_of_chain

from memfit.core.records import Program, Slowdown
from memfit.estimating.simulator.peaks import estimate
from memfit.planning.search.low_precision import in_low_precision
from memfit.planning.search.micro_batches import (
    ResizableProgram,
    in_micro_batches,
    regions_of,
    seconds_in_micro_batches,
    seconds_of,
)
from memfit.planning.search.recomputation import rematerialised
from memfit.planning.search.replicas import on_replicas


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


def test_a_smaller_last_part_takes_less_time() -> None:
    eight, seven, six = (seconds_in_micro_batches(chain(2), size) for size in (8, 7, 6))
    assert six < seven < eight
    assert eight - seven < 0.6 * (eight - six)


def test_segments_are_computed_again_and_their_activations_not_kept() -> None:
    program, layers = chain(64), layers_of_chain(64)
    again = rematerialised(program, layers, [(0, 3), (3, 6)])
    assert peak_of(again) < 0.85 * peak_of(program)
    assert _seconds(again) == _seconds(program) + 6  # all layers in them once more


def test_gradients_leave_a_segment_when_those_of_its_weights_are_there() -> None:
    again = rematerialised(chain(64), layers_of_chain(64), [(0, 3), (3, 6)]).graph
    (tie,) = [op for op in again.ops if op.kind == "Identity" and op.after]
    waited_for = [again.ops[number] for number in tie.after]
    weights = [op.layer for op in waited_for if again.tensors[op.outputs[0]] == MIB // 2]
    assert sorted(weights) == ["layer3", "layer4", "layer5"]
    assert {op.layer for op in again.ops if set(tie.outputs) & set(op.inputs)} == {"layer2"}


def test_a_program_at_two_sizes_is_known_at_all() -> None:
    sizes = ResizableProgram(chain(8), chain(32))
    assert sizes.are_alike
    assert sizes.at(8) is sizes.smaller
    assert sizes.at(20) == chain(20)
    assert sizes.at(64) == chain(64)


def test_programs_that_are_not_the_same_graph_are_noticed() -> None:
    assert not ResizableProgram(chain(8), in_micro_batches(chain(8), 32)).are_alike


def test_no_segments_change_nothing() -> None:
    program = chain(8)
    assert rematerialised(program, layers_of_chain(8), []) == program


def test_levers_work_together() -> None:
    again = rematerialised(chain(16), layers_of_chain(16), [(0, 3), (3, 6)])
    both = in_micro_batches(again, 64)
    assert peak_of(both) < peak_of(in_micro_batches(chain(16), 64))


def test_low_precision_halves_activations_and_reads_weights_through_casts() -> None:
    program = chain(64)
    low = in_low_precision(program, kept=(), slowdown=Slowdown(matmul=3.0))
    assert {low.graph.tensors[op.outputs[0]] for op in low.graph.ops if op.layer == "layer3"} == {
        64 * MIB // 8,  # its activations and their gradients
        MIB // 4,  # its weights, and their gradient
    }
    wide, narrow = (estimate(one, workers=1).parts for one in (program, low))
    assert narrow.activations_bytes < 0.6 * wide.activations_bytes
    assert narrow.scratch_bytes > 0  # the kernels work on copies in 32 bits
    assert low.variables == program.variables
    matmuls = 3 * LAYERS  # forward, and twice backward
    assert _seconds(low) > _seconds(program) + 1.9 * matmuls


def test_the_update_takes_gradients_in_32_bits() -> None:
    low = in_low_precision(chain(4), kept=(), slowdown=Slowdown())
    sizes = [low.graph.tensors[tensor] for tensor in regions_of(low).gradients]
    assert sizes == [MIB // 2] * LAYERS


def test_layers_that_are_kept_stay_as_they_are() -> None:
    program = chain(16)
    everything = [f"layer{n}" for n in range(LAYERS)]
    assert in_low_precision(program, everything, Slowdown(matmul=3.0)) == program
    one = in_low_precision(program, everything[1:], Slowdown())
    casts = [op for op in one.graph.ops if op.kind == "Cast"]
    assert {op.layer for op in casts} <= {"layer0", "layer1", ""}
    assert casts


def test_low_precision_goes_with_the_other_levers() -> None:
    low = in_low_precision(chain(16), kept=(), slowdown=Slowdown())
    cut = rematerialised(low, layers_of_chain(16), [(0, 3), (3, 6)])
    split = in_micro_batches(cut, 64)
    assert peak_of(split) < peak_of(in_micro_batches(chain(16), 64))


def test_on_replicas_gradients_are_summed_before_the_update() -> None:
    program = chain(16)
    shared = on_replicas(program)
    sums = [op for op in shared.graph.ops if op.kind == "CollectiveReduceV2"]
    assert sorted(op.inputs[0] for op in sums) == sorted(regions_of(program).gradients)
    made = {op.outputs[0] for op in sums}
    updates = [op for op in shared.graph.ops if op.kind == "Mul"]
    assert len(updates) == LAYERS
    assert all(made & set(op.inputs) for op in updates)
    heavy = chain(1, weight=8 * MIB)
    assert peak_of(heavy) < peak_of(on_replicas(heavy)) < peak_of(heavy) + LAYERS * 8 * MIB


def _seconds(program: Program) -> float:
    return round(seconds_of(program), 6)
