from __future__ import annotations

import random

import numpy as np
import pytest

from memfit.data.tfrecord.checksums import all_match, masked_checksums, masked_checksums_of_lengths


def _bit_by_bit(data: bytes) -> int:
    """A checksum as the definition has it."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    register ^= 0xFFFFFFFF
    return ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_the_usual_example() -> None:
    # CRC-32C of these is E3069283 by its specification.
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_checksums([b"123456789"]).tolist() == [masked]


def test_records_of_any_length_together() -> None:
    # Around every length at which another way is taken.
    lengths = [0, 1, 3, 4, 5, 12, 433, 434, 1000, 6773, 6774, 13_555, 16_380, 16_381, 54_300]
    records = [random.Random(length).randbytes(length) for length in lengths]
    assert masked_checksums(records).tolist() == [_bit_by_bit(record) for record in records]


def test_more_records_than_are_handled_together() -> None:
    records = [bytes([number, 7]) for number in range(150)]
    assert masked_checksums(records).tolist() == [_bit_by_bit(record) for record in records]
    assert masked_checksums([]).tolist() == []


@pytest.mark.parametrize("place", [0, 500, 29_999])
def test_one_bit_changes_it(place: int) -> None:
    sound = random.Random(1).randbytes(30_000)
    damaged = bytearray(sound)
    damaged[place] ^= 0x10
    first, second = masked_checksums([sound, bytes(damaged)])
    assert first != second


def test_lengths() -> None:
    lengths = np.array([0, 1, 255, 70_000, 2**40 + 3], np.uint64)
    expected = [_bit_by_bit(int(length).to_bytes(8, "little")) for length in lengths]
    assert masked_checksums_of_lengths(lengths).tolist() == expected


@pytest.mark.parametrize("lengths", [[0], [5], [9000, 3], [12, 0, 0, 437], [30_000, 1, 16_381] * 40])
def test_one_wrong_bit_in_any_of_many_records_is_found_at_once(lengths: list[int]) -> None:
    records = [np.frombuffer(random.Random(length).randbytes(length), np.uint8) for length in lengths]
    checksums = masked_checksums([record.tobytes() for record in records])
    assert all_match(records, checksums)
    for place in {0, len(records) // 2, len(records) - 1}:
        wrong = checksums.copy()
        wrong[place] ^= 1 << 31
        assert not all_match(records, wrong)
        if lengths[place]:
            damaged = records[place].copy()
            damaged[-1] ^= 1
            assert not all_match([*records[:place], damaged, *records[place + 1 :]], checksums)


def test_the_same_damage_in_two_equal_records_does_not_cancel_out() -> None:
    sound = np.arange(200, dtype=np.uint8)
    checksums = masked_checksums([sound.tobytes()] * 2)
    damaged = sound.copy()
    damaged[100] ^= 7
    assert all_match([sound, sound], checksums)
    assert not all_match([damaged, damaged], checksums)
