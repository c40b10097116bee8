"""The search over levers, on a step made by hand."""

from __future__ import annotations

import dataclasses

import pytest
from chains import MIB, chain, layers_of_chain

from memfit.core.records import Op, Program, ProgramVariable
from memfit.estimating.simulator.peaks import estimate
from memfit.planning.search.fastest import Base, Candidate, Search, Weighed, even_sizes
from memfit.planning.search.micro_batches import ResizableProgram

BATCH = 64


def weigh(program: Program) -> Weighed:
    found = estimate(program, workers=1, processes=1)
    return Weighed(found.peak_bytes, found.safe_bytes)


def search(*, remat: bool = True, split: bool = True, normalises: bool = False) -> Looking:
    sizes = [chain(size) for size in (16, BATCH)]
    if normalises:
        sizes = list(map(_with_statistics, sizes))
    layers = layers_of_chain(BATCH) if remat else None
    return Looking([Base(ResizableProgram(*sizes).at, layers=layers, may_split=split)])


class Looking(Search):
    """A search, and ways to ask it about single candidates."""

    def __init__(self, bases: list[Base]) -> None:
        super().__init__(bases, BATCH, weigh, room_bytes=1 << 40)
        self.base = bases[0]

    def at(self, micro_batch_size: int) -> Candidate:
        return self.candidate(self.base, micro_batch_size)


def _with_statistics(program: Program) -> Program:
    """The same step, which also moves what BatchNormalization keeps."""
    graph, number = program.graph, len(program.variables)
    handle = len(graph.tensors)
    ops = (
        Op("VarHandleOp", outputs=(handle,), role="variable", variable=number, cheap=True),
        Op("AssignSubVariableOp", inputs=(handle,), role="update", cheap=True),
    )
    statistics = ProgramVariable("norm/moving_mean", 4, "weight")
    return dataclasses.replace(
        program,
        variables=(*program.variables, statistics),
        graph=dataclasses.replace(graph, ops=graph.ops + ops, tensors=(*graph.tensors, 0)),
    )


def test_what_fits_is_left_as_it_is() -> None:
    found = search().within(1024 * MIB)
    assert found.fitting == (found.plain,)
    assert (found.plain.micro_batch_size, found.plain.spans, found.plain.relative_time) == (BATCH, (), 1.0)


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_the_largest_micro_batch_that_fits_and_no_larger(share: float) -> None:
    looking = search(remat=False)
    budget = int(share * looking.at(BATCH).weighed.safe_bytes)
    (found,) = looking.within(budget).fitting
    assert found.weighed.safe_bytes <= budget
    larger = next(size for size in reversed(even_sizes(BATCH)) if size > found.micro_batch_size)
    assert looking.at(larger).weighed.safe_bytes > budget


def test_without_leave_to_split_only_cuts_help() -> None:
    looking = search(split=False)
    found = looking.within(int(0.9 * looking.at(BATCH).weighed.safe_bytes))
    assert found.fitting
    assert all(one.micro_batch_size == BATCH and one.spans for one in found.fitting)
    assert all(one.relative_time > 1 for one in found.fitting)


def test_the_fastest_comes_first_and_nobody_beats_another() -> None:
    looking = search()
    found = looking.within(int(0.6 * looking.at(BATCH).weighed.safe_bytes)).fitting
    fastest = min(one.relative_time for one in found)
    assert fastest <= found[0].relative_time <= 1.01 * fastest
    by_time = sorted(found, key=lambda one: one.relative_time)
    peaks = [one.weighed.peak_bytes for one in by_time]
    assert peaks == sorted(peaks, reverse=True)


def test_with_batch_normalization_cuts_come_before_splits() -> None:
    looking = search(normalises=True)
    found = looking.within(int(0.9 * looking.at(BATCH).weighed.safe_bytes)).fitting
    assert found[0].exact
    assert found[0].micro_batch_size == BATCH
    assert any("BatchNormalization" in note for one in found[1:] for note in one.notes)


def test_what_was_weighed_wrongly_is_the_first_guess_for_other_cuts() -> None:
    looking = search()
    one, other, *_ = (spans for spans in looking.levels(looking.base) if spans)
    weighed, beside = (looking.candidate(looking.base, BATCH, spans).weighed for spans in (one, other))
    looking.correct(looking.candidate(looking.base, BATCH, one), round(1.1 * weighed.safe_bytes))
    guessed = looking.candidate(looking.base, BATCH, other).weighed
    assert guessed.safe_bytes == pytest.approx(1.1 * beside.safe_bytes, rel=1e-6)
    assert looking.forget_guesses()
    assert looking.candidate(looking.base, BATCH, other).weighed == beside
    corrected = looking.candidate(looking.base, BATCH, one).weighed
    assert corrected.safe_bytes == pytest.approx(1.1 * weighed.safe_bytes, rel=1e-6)
    assert not looking.forget_guesses()


def test_what_needs_less_than_weighed_is_no_guess_for_others() -> None:
    looking = search()
    one, other, *_ = (spans for spans in looking.levels(looking.base) if spans)
    beside = looking.candidate(looking.base, BATCH, other).weighed
    first = looking.candidate(looking.base, BATCH, one)
    looking.correct(first, first.weighed.safe_bytes // 2)
    assert looking.candidate(looking.base, BATCH, other).weighed == beside


def test_with_more_cuts_smaller_micro_batches_are_not_weighed_again() -> None:
    looking = search()
    found = looking.within(round(0.55 * looking.at(BATCH).weighed.safe_bytes))
    least = min(one.micro_batch_size for one in found.fitting)
    cut = [one for one in looking._known.values() if one.spans]
    assert cut
    assert all(one.micro_batch_size >= least for one in cut)


def test_where_nothing_fits_the_smallest_is_known() -> None:
    found = search().within(MIB)
    assert found.fitting == ()
    assert found.smallest.micro_batch_size == 1


def test_the_same_question_has_the_same_answer() -> None:
    answers = [search().within(100 * MIB).fitting for _ in range(2)]
    first, second = ([(one.micro_batch_size, one.spans, one.weighed) for one in each] for each in answers)
    assert first == second
