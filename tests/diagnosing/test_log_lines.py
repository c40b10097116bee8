"""Streams of bytes: long lines, progress bars, encodings, line numbers across blocks."""

from __future__ import annotations

import io
import random

import pytest

import memfit
from diagnosing.written_logs import ACTIVATIONS
from memfit.diagnosing.diagnose_any import diagnose_blocks
from memfit.diagnosing.logs.log_lines import Landmark, blocks_of, clean, find_hits, pattern_of

PATTERN = pattern_of([b"Killed", b"Error", b"Epoch "])


def _hits(blocks: list[bytes]) -> list[tuple[int, str]]:
    return [(hit.line, hit.text) for hit in find_hits(blocks, PATTERN) if isinstance(hit, Landmark)]


def test_lines_are_counted_across_blocks() -> None:
    text = b"".join(b"line %d\n" % n if n % 1000 else b"Error %d\n" % n for n in range(1, 60_001))
    cuts = sorted(random.Random(5).sample(range(len(text)), 40))
    blocks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _hits(blocks) == [(n, f"Error {n}") for n in range(1000, 60_001, 1000)]


def test_a_progress_bar_begins_its_line_again() -> None:
    log = b"Epoch 1\n" + b"".join(b"\r%d/9 [=>..]" % n for n in range(9)) + b"\rValueError: x\r\nKilled\n"
    assert _hits([log]) == [(1, "Epoch 1"), (2, "ValueError: x"), (3, "Killed")]


def test_a_line_without_an_end_is_looked_at_in_pieces() -> None:
    block = b"x" * 2**20
    hits = _hits([block] * 4 + [b"y" * 1000 + b" Killed " + b"z" * 1000] + [block] * 4)
    assert len(hits) == 1
    assert len(hits[0][1]) < 20_000


@pytest.mark.parametrize("at", range(12))
def test_a_landmark_at_the_seam_of_two_blocks_is_found(at: int) -> None:
    blocks = [b"x" * 2**20 + b" Killed "[:at], b" Killed "[at:] + b"y" * 2**20]
    assert len(_hits(blocks)) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_encodings(encoding: str) -> None:
    stream = io.BytesIO(ACTIVATIONS.encode(encoding))
    assert diagnose_blocks(blocks_of(stream)).cause == "activations"


def test_colours_and_bytes_that_are_no_text() -> None:
    colourful = "\x1b[1;31m" + ACTIVATIONS.replace("ran out", "\x1b[0mran out\x1b[32m") + "\x1b[0m"
    damaged = b"\xff\xfe\xfd" + colourful.encode() + b"\x80\x81"
    found = memfit.diagnose(damaged[3:])
    assert found.cause == "activations"
    assert all("\x1b" not in quote.text for quote in found.evidence)
    assert clean(b"\x1b[31ma\x00b\xff") == "a b\ufffd"


@pytest.mark.parametrize(
    ("line", "worker"),
    [
        (b"[1,3]<stderr>:Error x", "[1,3]<stderr>:"),
        (b"worker-2: Error x", "worker-2:"),
        (b"(train pid=88, ip=10.0.0.7) Error x", "(train pid=88, ip=10.0.0.7)"),
        (b"3: Error x", "3:"),
        (b"trainer_1  | Error x", "trainer_1  |"),
        (b"2031-02-03 04:05:06.1: E Error x", ""),
        (b"W0000 00:00:1900000000.1 7 Error x", ""),
        (b"Error x", ""),
    ],
)
def test_workers(line: bytes, worker: str) -> None:
    (hit,) = find_hits([line], PATTERN)
    assert (hit.worker, hit.text.endswith("Error x")) == (worker, True)


def test_quotes_are_short_and_begin_where_the_message_does() -> None:
    line = (
        b"  3%|# | 3/90 [00:01<00:30]" * 30
        + b"2031-02-03 04:05:06.1: E tensorflow/a.cc:1] Error "
        + b"x" * 900
    )
    (hit,) = find_hits([line], PATTERN)
    quote = hit.evidence()
    assert quote.text.startswith("2031-02-03 04:05:06.1: E tensorflow/a.cc:1] Error x")
    assert len(quote.text) <= 300


def test_landmarks_that_begin_alike() -> None:
    pattern = pattern_of([b"Free at", b"Free  at", b"File", b"Kill", b"Killed"])
    assert [match[0] for match in pattern.finditer(b"Free  at File Killed Free at")] == [
        b"Free  at", b"File", b"Kill", b"Free at",
    ]  # fmt: skip


def test_what_stands_around_a_hit() -> None:
    window = b"before\nError here\nafter\nmore\n"
    hit = Landmark(b"Error", 2, b"Error here", (window, 7, 17))
    assert (hit.following, hit.behind().strip(), hit.ahead().split()) == (
        "after",
        "before",
        ["after", "more"],
    )
