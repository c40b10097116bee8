"""Whatever comes in, an answer from the closed set comes out."""

from __future__ import annotations

import typing

from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosing.test_causes import LOGS
from diagnosing.written_logs import ACTIVATIONS
from memfit.core.records import Cause, Diagnosis
from memfit.diagnosing.diagnose_any import diagnose_blocks

CAUSES = set(typing.get_args(Cause))
EVERYTHING = [log for _, _, log in LOGS]
PIECES = sorted(
    {piece for log in EVERYTHING for line in log.splitlines() for piece in (line, line[:40], line[30:])}
)


def _check(data: bytes) -> None:
    found = diagnose_blocks([data])
    assert found.cause in CAUSES
    assert set(found.also) <= CAUSES - {found.cause}
    assert Diagnosis.from_json(found.to_json()) == found
    lines = data.count(b"\n") + 1
    assert all(1 <= quote.line <= lines for quote in found.evidence)


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    _check(data)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.sampled_from(["\n", "\r", "", "\r\n", "\0"]))
def test_any_mixture_of_what_logs_say(pieces: list[str], between: str) -> None:
    _check(between.join(pieces).encode())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(EVERYTHING), st.data())
def test_logs_cut_anywhere(log: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(log)))
    stop = data.draw(st.integers(start, len(log)))
    _check(log.encode()[start:stop])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), max_size=40))
def test_damaged_logs(damages: list[tuple[int, bytes]]) -> None:
    log = bytearray(ACTIVATIONS.encode())
    for anywhere, damage in damages:
        at = anywhere % len(log)
        log[at : at + len(damage)] = damage
    _check(bytes(log))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_shuffled_lines(random: typing.Any) -> None:
    lines = ACTIVATIONS.splitlines()
    random.shuffle(lines)
    _check("\n".join(lines).encode())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EVERYTHING), st.lists(st.integers(1, 200), min_size=1, max_size=60))
def test_blocks_of_any_size_say_the_same(log: str, sizes: list[int]) -> None:
    data, blocks, at = log.encode(), [], 0
    for size in sizes:
        blocks.append(data[at : at + size])
        at += size
    assert diagnose_blocks([*blocks, data[at:]]) == diagnose_blocks([data])
