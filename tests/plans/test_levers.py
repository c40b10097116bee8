"""Levers on a step made by hand."""

from __future__ import annotations

from chains import LAYERS, MIB, chain, layers_of_chain

from memfit.estimates.peaks import estimate
from memfit.plans.micro_batches import in_micro_batches
from memfit.plans.regions import regions_of
from memfit.plans.remats import rematerialised
from memfit.plans.sizes import Sizes
from memfit.plans.times import seconds_of
from memfit.records import Program


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
    assert sizes.are_alike
    assert sizes.at(8) is sizes.smaller
    assert sizes.at(20) == chain(20)
    assert sizes.at(64) == chain(64)


def test_programs_that_are_not_the_same_graph_are_noticed() -> None:
    assert not Sizes(chain(8), in_micro_batches(chain(8), 32)).are_alike


def test_no_segments_change_nothing() -> None:
    program = chain(8)
    assert rematerialised(program, layers_of_chain(8), []) == program


def test_levers_work_together() -> None:
    again = rematerialised(chain(16), layers_of_chain(16), [(0, 3), (3, 6)])
    both = in_micro_batches(again, 64)
    assert peak_of(both) < peak_of(in_micro_batches(chain(16), 64))


def _seconds(program: Program) -> float:
    return round(seconds_of(program), 6)
