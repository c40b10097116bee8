from __future__ import annotations

import pytest

from memfit.core.errors import RamTooSmall
from memfit.data.stream.budget import SampleSizes, allot, least_bytes

MIB = 1 << 20
SIZES = SampleSizes(held_bytes=MIB, raw_bytes=1000, working_bytes=MIB, element_bytes=300_000)


@pytest.mark.parametrize("ram_mebibytes", [112, 128, 256, 1024])
def test_all_parts_together_stay_within_the_ram(ram_mebibytes: int) -> None:
    allotment = allot(SIZES, batch_size=32, ram_bytes=ram_mebibytes * MIB, width=8)
    assert sum(size for _, size in allotment.parts) == allotment.total_bytes <= ram_mebibytes * MIB
    assert allotment.parallel >= 1
    assert allotment.prefetch >= 1


def test_more_ram_makes_a_stream_wider_first_and_deeper_then() -> None:
    widths = [allot(SIZES, batch_size=32, ram_bytes=ram * MIB, width=4) for ram in (112, 116, 140, 500)]
    assert [(a.parallel, a.prefetch) for a in widths] == sorted((a.parallel, a.prefetch) for a in widths)
    assert widths[0].prefetch == 1
    assert widths[-1].parallel == 4
    assert widths[-1].prefetch > 1


def test_a_window_takes_what_is_left() -> None:
    with_window = allot(SIZES, batch_size=32, ram_bytes=256 * MIB, width=2, has_window=True)
    assert with_window.window > 0
    assert 0.9 * 256 * MIB < with_window.total_bytes <= 256 * MIB


def test_too_little_ram_says_how_much_would_do() -> None:
    with pytest.raises(RamTooSmall) as raised:
        allot(SIZES, batch_size=32, ram_bytes=10 * MIB, width=2)
    assert raised.value.least_bytes == least_bytes(SIZES, 32)
    assert allot(SIZES, batch_size=32, ram_bytes=raised.value.least_bytes, width=2).parallel == 1


def test_more_is_read_at_once_only_where_ram_is_left() -> None:
    few, many = (
        allot(SIZES, batch_size=32, ram_bytes=ram * MIB, width=4, reads_ahead=True) for ram in (112, 1024)
    )
    plain = allot(SIZES, batch_size=32, ram_bytes=1024 * MIB, width=4)
    assert plain.read == 32
    assert many.read == 512
    assert few.total_bytes <= 112 * MIB
    assert plain.total_bytes < many.total_bytes <= 1024 * MIB
    large = SampleSizes(held_bytes=0, raw_bytes=20 * MIB, working_bytes=MIB, element_bytes=300_000)
    wide = allot(large, batch_size=1, ram_bytes=1024 * MIB, width=4, reads_ahead=True)
    assert wide.read < 4
    assert wide.total_bytes <= 1024 * MIB
