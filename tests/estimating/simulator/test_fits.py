"""Whether programs made by hand run in a pool of a size."""

from __future__ import annotations

import pytest

from memfit.core.records import Fit, Op, OpGraph, Program, ProgramVariable
from memfit.estimating.simulator.executor import Simulation
from memfit.estimating.simulator.peaks import estimate, fits

MIB = 1 << 20


def chain(length: int = 6, size: int = 8 * MIB) -> Program:
    """Each operation takes what the one before made, and needs as much again while it runs."""
    ops = [
        Op("A", inputs=(n - 1,) if n else (), outputs=(n,), scratch=(size,), seconds=1.0)
        for n in range(length)
    ]
    return Program(1, "graph", (), OpGraph(tuple(ops), (size,) * length))


@pytest.mark.parametrize(
    ("limit_mib", "expected"), [(64, "for sure"), (29, "for sure"), (26, "maybe"), (23, "no"), (8, "no")]
)
def test_what_needs_24_mib_beside_the_first_two(limit_mib: int, expected: Fit) -> None:
    program = chain()
    found = estimate(program, workers=1)
    assert found.peak_bytes == 24 * MIB
    assert fits(program, found, limit_mib * MIB, workers=1) == expected


def test_variables_that_do_not_fit_are_noticed() -> None:
    variables = (ProgramVariable("w", 16 * MIB, "weight"),) * 2
    program = Program(1, "graph", variables, OpGraph((), ()))
    assert fits(program, estimate(program), 30 * MIB) == "no"
    assert fits(program, estimate(program), 38 * MIB) == "for sure"


def test_gaps_in_the_pool_count() -> None:
    """What lives fits, but not in one piece: every other small tensor stays, and a large one comes."""
    small = [Op("A", outputs=(n,), seconds=1.0, after=(n - 1,) if n else ()) for n in range(16)]
    freed = Op("B", inputs=tuple(range(0, 16, 2)), outputs=(16,), after=(15,), seconds=1.0)
    large = Op("C", inputs=(16,), outputs=(17,), seconds=1.0)
    kept = Op("D", inputs=(17, *range(1, 16, 2)), seconds=1.0)
    program = Program(1, "graph", (), OpGraph((*small, freed, large, kept), (MIB,) * 16 + (256, 7 * MIB)))
    found = estimate(program, workers=1)  # at most 16 MiB live at a time
    assert fits(program, found, 20 * MIB, workers=1) == "no"
    assert fits(program, found, 28 * MIB, workers=1) == "for sure"


def test_an_operation_waits_until_another_gives_its_memory_back() -> None:
    ops = tuple(Op("A", outputs=(n,), scratch=(8 * MIB,), seconds=1.0) for n in range(2))
    program = Program(1, "graph", (), OpGraph(ops, (256, 256)))
    simulation = Simulation(program, workers=2, limit_bytes=12 * MIB)
    assert simulation.step().peak_bytes < 12 * MIB
    assert simulation.step().peak_bytes < 12 * MIB
