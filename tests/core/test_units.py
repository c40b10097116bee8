from __future__ import annotations

import contextlib
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.core.errors import InvalidSize
from memfit.core.units import format_size, parse_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("512 MB", 512 * 10**6),
        ("0.5g", 2**29),
        ("1.5k", 1536),
        (".5 MiB", 2**19),
        ("1_000 kB", 10**6),
        ("2e3", 2000),
        ("4096", 4096),
        ("7 bytes", 7),
        ("1.9 B", 1),
        ("8PiB", 8 * 2**50),
        ("  3 T  ", 3 * 2**40),
        (4096, 4096),
        (np.int64(4096), 4096),
        (8e9, 8_000_000_000),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_parses_sizes(size: object, expected: int) -> None:
    assert parse_size(size) == expected


@pytest.mark.parametrize(
    "size",
    [
        "8gigs", "", " ", "GiB", "-1", "-1GiB", "0", "0GiB", "0.0", "1,000", "1 000", "8 GiB GiB", "nan",
        "inf", "1e999999999GiB", "0x10", "8GiBps", "٣GiB", "1.2.3", "--8", "1e-3MB", "16EiB", "9" * 400,
        0, -1, 0.5, float("nan"), float("inf"), True, None, [8], 2**63, 1 + 2j, b"8GiB",
    ],
)  # fmt: skip
def test_refuses_nonsense(size: object) -> None:
    with pytest.raises(InvalidSize) as caught:
        parse_size(size, name="budget")
    assert caught.value.received is size or caught.value.received != caught.value.received
    assert isinstance(caught.value, ValueError)


def test_the_error_says_what_came_and_what_to_write() -> None:
    with pytest.raises(InvalidSize) as caught:
        parse_size("8gigs", name="budget")
    assert str(caught.value) == (
        "expected a number of bytes or a size with a unit.\n"
        '  Received: budget="8gigs" (str)\n'
        '  Try: budget="8GiB"'
    )


def test_the_error_speaks_the_language_of_the_command_line() -> None:
    with pytest.raises(
        InvalidSize,
        match=r"expected a size of at least 1 B.\n  Received: --budget 0 \(str\)\n  Try: --budget 8GiB",
    ):
        parse_size("0", name="--budget")


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (512 * 10**6, "488.3 MiB"),
     (2**33, "8.0 GiB"), (2**50, "1024.0 TiB"), (-(2**20), "-1.0 MiB")],
)  # fmt: skip
def test_writes_sizes_in_binary_units(size_bytes: int, expected: str) -> None:
    assert format_size(size_bytes) == expected


@given(st.integers(1, 10**12), st.sampled_from(["", "KiB", "MB", "k", "GiB"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    factor = {"": 1, "KiB": 1024, "MB": 10**6, "k": 1024, "GiB": 2**30}[unit]
    if number * factor < 2**63:
        assert parse_size(f"{number}{unit}") == number * factor


@given(st.decimals("0.001", "999", places=3))
def test_fractions_round_down_to_whole_bytes(number: Decimal) -> None:
    assert parse_size(f"{number:f}MiB") == int(number * 2**20)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(InvalidSize):
        assert parse_size(text) >= 1
