"""Small programs by hand: what is in memory while they run."""

from __future__ import annotations

import dataclasses

import pytest

from memfit.core.records import Op, OpGraph, Program, ProgramVariable
from memfit.estimating.simulator.executor import Simulation

MIB = 1 << 20


def program(
    ops: list[Op],
    tensors: list[int],
    *,
    outputs: tuple[int, ...] = (),
    inputs: tuple[int, ...] = (),
    variables: tuple[ProgramVariable, ...] = (),
    bodies: tuple[OpGraph, ...] = (),
) -> Program:
    graph = OpGraph(tuple(ops), tuple(tensors), inputs, outputs)
    return Program(1, "graph", variables, graph, bodies)


def peak(one: Program, workers: int = 1, steps: int = 3) -> int:
    """What the last of some steps needs; a pool of large chunks wastes nothing on tensors of a MiB."""
    simulation = Simulation(one, workers=workers)
    address = simulation.memory.allocate(256 * MIB)
    simulation.memory.free(address)
    return [simulation.step().peak_bytes for _ in range(steps)][-1]


def test_a_chain_holds_two_tensors_at_a_time() -> None:
    ops = [Op("A", inputs=(n - 1,) if n else (), outputs=(n,), seconds=1.0) for n in range(6)]
    assert peak(program(ops, [MIB] * 6)) == 2 * MIB


def test_an_operation_that_can_takes_the_place_of_its_input() -> None:
    ops = [
        Op("Relu", inputs=(n - 1,) if n else (), outputs=(n,), reuses=(0,) if n else (), seconds=1.0)
        for n in range(6)
    ]
    assert peak(program(ops, [MIB] * 6)) == MIB


def test_what_somebody_else_still_needs_is_not_taken() -> None:
    ops = [
        Op("A", outputs=(0,), seconds=1.0),
        Op("Relu", inputs=(0,), outputs=(1,), reuses=(0,), seconds=1.0),
        Op("B", inputs=(0, 1), seconds=1.0),
    ]
    assert peak(program(ops, [MIB, MIB])) == 2 * MIB


def test_the_room_that_a_guard_makes_sure_of_is_needed_before_an_operation_and_not_beside_it() -> None:
    ops = [
        Op("Conv2D", outputs=(0,), rooms=3, seconds=1.0),
        Op("Conv2D", inputs=(0,), outputs=(1,), rooms=3, seconds=1.0),
    ]
    plain = program(ops, [MIB, MIB])
    assert peak(plain) == 2 * MIB
    taken = (1 + 3) * MIB + (MIB >> 1) + (MIB >> 2)  # and a piece may be handed out whole
    assert taken <= peak(dataclasses.replace(plain, is_guarded=True)) < taken + (MIB >> 1)


def test_scratch_is_there_while_an_operation_runs() -> None:
    ops = [
        Op("A", outputs=(0,), scratch=(3 * MIB, 4 * MIB), seconds=1.0),
        Op("B", inputs=(0,), outputs=(1,), seconds=1.0),
    ]
    assert peak(program(ops, [MIB, MIB])) == 8 * MIB


def test_two_workers_hold_two_branches_at_a_time() -> None:
    ops = [Op("A", outputs=(n,), scratch=(8 * MIB,), seconds=1.0) for n in range(2)]
    assert peak(program(ops, [256, 256]), workers=1) < 9 * MIB
    assert peak(program(ops, [256, 256]), workers=2) > 16 * MIB


def test_an_operation_waits_for_what_it_has_to_come_after() -> None:
    ops = [
        Op("A", outputs=(0,), scratch=(8 * MIB,), seconds=1.0),
        Op("B", after=(0,), outputs=(1,), scratch=(8 * MIB,), seconds=1.0),
    ]
    assert peak(program(ops, [256, 256]), workers=2) < 9 * MIB


@pytest.mark.parametrize(("read_late", "expected"), [(False, 2 * MIB), (True, 3 * MIB)])
def test_a_variable_is_copied_only_where_somebody_still_reads_it(read_late: bool, expected: int) -> None:
    ops = [
        Op("VarHandleOp", outputs=(0,), role="variable", variable=0, cheap=True),
        Op("ReadVariableOp", inputs=(0,), outputs=(1,), role="read", cheap=True),
        Op("Gradient", inputs=() if read_late else (1,), after=(1,), outputs=(2,), seconds=1.0),
        Op("AssignSubVariableOp", inputs=(0, 2), role="update", seconds=1.0),
        Op("Late", inputs=(1,) if read_late else (), after=(3,), outputs=(3,), seconds=1.0),
    ]
    weight = ProgramVariable("w", MIB, "weight")
    assert peak(program(ops, [0, MIB, MIB, 256], variables=(weight,))) in (expected, expected + 256)


def test_what_a_loop_puts_into_a_list_stays_until_the_list_goes() -> None:
    # Each time round: make a tensor from the last one, and put it into the list.
    body = OpGraph(
        ops=(
            Op("Tanh", inputs=(0,), outputs=(2,), seconds=1.0),
            Op("TensorListPushBack", inputs=(1, 2), outputs=(3,), role="put", cheap=True),
        ),
        tensors=(MIB, 0, MIB, 0),
        inputs=(0, 1),
        outputs=(2, 3),
    )
    ops = [
        Op("Fill", outputs=(0,), seconds=1.0),
        Op("EmptyTensorList", outputs=(1,), role="new_list", cheap=True),
        Op("While", inputs=(0, 1), outputs=(2, 3), role="call", body=0, times=10, parallel=4, cheap=True),
        Op("Use", inputs=(2, 3), seconds=1.0),
    ]
    assert peak(program(ops, [MIB, 0, MIB, 0], bodies=(body,))) == 10 * MIB


def test_a_way_back_takes_out_of_the_list_what_the_way_there_put_in() -> None:
    body = OpGraph(
        ops=(
            Op("TensorListPopBack", inputs=(0,), outputs=(1, 2), role="pop", cheap=True),
            Op("Mul", inputs=(2, 3), outputs=(4,), reuses=(0, 1), seconds=1.0),
        ),
        tensors=(0, 0, MIB, MIB, MIB),
        inputs=(0, 3),
        outputs=(1, 4),
    )
    ops = [
        Op("A", outputs=(0,), seconds=1.0),
        Op("TensorListFromTensor", inputs=(0,), outputs=(1,), role="fill", times=8, scratch=(MIB,)),
        Op("Fill", after=(1,), outputs=(2,), seconds=1.0),
        Op("While", inputs=(1, 2), outputs=(3, 4), role="call", body=0, times=8, cheap=True),
        Op("Use", inputs=(3, 4), seconds=1.0),
    ]
    simulation = Simulation(program(ops, [8 * MIB, 0, MIB, 0, MIB], bodies=(body,)), workers=1)
    first = simulation.step()
    assert first.peak_bytes >= 16 * MIB
    assert simulation.memory.used_bytes == first.before_bytes  # nothing stays behind


def test_the_same_seed_gives_the_same_peaks() -> None:
    ops = [Op("A", outputs=(n,), scratch=(n * MIB,), seconds=1.0) for n in range(8)]
    one = program(ops, [MIB] * 8)
    peaks = [[Simulation(one, workers=2, seed=s).step().peak_bytes for _ in range(3)] for s in (1, 1)]
    assert peaks[0] == peaks[1]


def test_who_holds_what_at_the_peak_adds_up() -> None:
    ops = [
        Op("A", inputs=(0,), outputs=(1,), layer="first", line="a.py:1", seconds=1.0),
        Op("B", inputs=(1,), outputs=(2,), scratch=(MIB,), part="gradients", layer="second", seconds=1.0),
    ]
    one = program(ops, [MIB, 2 * MIB, MIB], inputs=(0,), variables=(ProgramVariable("w", MIB, "weight"),))
    step = Simulation(one, workers=1).step()
    holders = step.holders()
    assert sum(holders.values()) == step.peak_bytes
    assert holders["weights", "", ""] == MIB
    assert holders["activations", "first", "a.py:1"] == 2 * MIB
    assert holders["gradients", "second", ""] == MIB
    assert holders["scratch", "second", ""] == MIB


def test_the_timeline_of_a_step_goes_up_and_down() -> None:
    ops = [
        Op("A", outputs=(0,), seconds=1.0),
        Op("B", inputs=(0,), outputs=(1,), scratch=(9 * MIB,), seconds=1.0),
    ]
    step = Simulation(program(ops, [MIB, MIB]), workers=1).step()
    assert len(step.timeline(6)) == 6
    assert max(step.timeline(6)) == step.peak_bytes
    assert step.timeline(6)[0] < step.peak_bytes > step.timeline(6)[-1]
    assert step.timeline(50)[-1] >= step.before_bytes
