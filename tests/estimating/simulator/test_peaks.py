"""Who holds what at the peak: layers, and lines of the user's code."""

from __future__ import annotations

from memfit.core.records import LayerBytes, Op, OpGraph, Program, ProgramVariable
from memfit.estimating.simulator.peaks import estimate

MIB = 1 << 20


def _layers(*ops: tuple[str, str, int], weight_bytes: int = 0) -> tuple[LayerBytes, ...]:
    """What is said where operations of a layer, a line and so many bytes all hold what they make."""
    graph = OpGraph(
        ops=tuple(
            Op("A", outputs=(number,), layer=layer, line=line, seconds=1.0)
            for number, (layer, line, _) in enumerate(ops)
        ),
        tensors=tuple(size for _, _, size in ops),
        outputs=tuple(range(len(ops))),
    )
    weights = (ProgramVariable("kernel", weight_bytes, "weight", "dense"),) if weight_bytes else ()
    return estimate(Program(1, "graph", weights, graph), workers=1).layers


def test_a_layer_has_the_line_that_most_of_it_comes_from() -> None:
    found = _layers(
        ("dense", "train.py:5", MIB),
        ("dense", "train.py:6", 2 * MIB),
        ("dense", "train.py:5", 2 * MIB),
        ("other", "", 4 * MIB),
        weight_bytes=8 * MIB,  # which no line holds
    )
    assert found == (LayerBytes("dense", 13 * MIB, "train.py:5"), LayerBytes("other", 4 * MIB))


def test_what_is_in_no_layer_goes_by_its_lines() -> None:
    found = _layers(("", "a.py:1", MIB), ("", "", 9 * MIB), ("", "a.py:2", 3 * MIB), ("dense", "", 2 * MIB))
    assert found == (
        LayerBytes("", 3 * MIB, "a.py:2"),
        LayerBytes("dense", 2 * MIB),
        LayerBytes("", MIB, "a.py:1"),
    )
