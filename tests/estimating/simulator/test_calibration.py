"""Programs and probes made by hand: what a probe changes, and what it leaves."""

from __future__ import annotations

from memfit.core.records import KernelScratch, Op, OpGraph, Probe, Program
from memfit.estimating.simulator.peaks import calibrate, estimate, unknown_kinds, what_is_unknown

MIB = 1 << 20


def _program(*, size: int = MIB) -> Program:
    """A step that pads something, alone and in a loop, and multiplies it."""
    padded = Op("MirrorPadGrad", "pad", inputs=(0,), outputs=(1,), known=False, seconds=1e-3)
    known = Op("Conv2DBackpropFilter", "filter", inputs=(1,), outputs=(2,), scratch=(7 * MIB,), seconds=1e-3)
    body = OpGraph((padded,), (size, size), (0,), (1,))
    loop = Op("While", "loop", inputs=(2,), outputs=(3,), role="call", body=0, times=2, cheap=True)
    graph = OpGraph((padded, known, loop), (size,) * 4, (0,), (3,))
    return Program(8, "graph", (), graph, (body,))


def test_what_was_seen_is_drawn_out_to_the_size_of_the_program() -> None:
    probe = Probe((KernelScratch("pad", 100.0, 2.0), KernelScratch("filter", float(MIB))))
    small, large = (calibrate(_program(size=size), probe) for size in (MIB, 3 * MIB))
    assert small.graph.ops[0].scratch == small.bodies[0].ops[0].scratch == (100 + 4 * MIB,)
    assert large.graph.ops[0].scratch == large.bodies[0].ops[0].scratch == (100 + 12 * MIB,)
    assert [program.graph.ops[1].scratch for program in (small, large)] == [(MIB,)] * 2
    assert small.graph.ops[2] == _program().graph.ops[2]


def test_what_shrinks_to_nothing_needs_none() -> None:
    probe = Probe((KernelScratch("pad", -4.0 * MIB, 1.0), KernelScratch("filter", 0.0)))
    ops = calibrate(_program(), probe).graph.ops
    assert [ops[0].scratch, ops[1].scratch] == [(), ()]


def test_what_was_not_probed_stays_and_is_said() -> None:
    program = calibrate(_program(), Probe((), ("what 2 kernels need: the process ended",)))
    assert program.graph == _program().graph
    assert estimate(program, workers=1).left_out == (
        "what 2 kernels need: the process ended",
        "what kernels of MirrorPadGrad need while they run",
    )


def test_what_is_unknown_is_said_until_it_was_probed() -> None:
    assert unknown_kinds(_program()) == ("MirrorPadGrad",)
    assert what_is_unknown(calibrate(_program(), Probe((KernelScratch("pad", 1.0),)))) == ()


def test_what_is_small_does_not_matter() -> None:
    assert unknown_kinds(_program(size=1024)) == ()


def test_of_many_kinds_some_are_named() -> None:
    ops = tuple(Op(f"Kind{n}", inputs=(0,), known=False) for n in range(9))
    program = Program(8, "graph", (), OpGraph(ops, (MIB,), (0,)))
    assert what_is_unknown(program) == (
        "what kernels of Kind0, Kind1, Kind2, Kind3, Kind4, Kind5 and 3 more need while they run",
    )


def test_a_probe_changes_the_peak() -> None:
    plain = estimate(_program(), workers=1)
    probed = estimate(calibrate(_program(), Probe((KernelScratch("pad", 0.0, 16.0),))), workers=1)
    assert probed.peak_bytes > plain.peak_bytes + 16 * MIB
    assert probed.parts.scratch_bytes == 32 * MIB
