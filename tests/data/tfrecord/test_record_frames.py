from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from memfit.data.tfrecord.checksums import masked_checksums
from memfit.data.tfrecord.record_frames import find_compression, find_frames


def _framed(records: Sequence[bytes]) -> bytes:
    found = b""
    for record in records:
        length = len(record).to_bytes(8, "little")
        checksums = [int(each).to_bytes(4, "little") for each in masked_checksums([length, record])]
        found += length + checksums[0] + record + checksums[1]
    return found


RECORDS = [b"a" * length for length in (5, 0, 300, 7)]


def _written(folder: Path, data: bytes) -> bytes:
    (folder / "a.tfrecord").write_bytes(data)
    return os.fsencode(folder / "a.tfrecord")


def test_all_records_are_found(tmp_path: Path) -> None:
    many = [b"x" * (number % 3) for number in range(5000)]
    for records in (RECORDS, [], many):
        lengths, damage = find_frames(_written(tmp_path, _framed(records)))
        assert lengths.tolist() == [len(record) for record in records]
        assert damage is None


@pytest.mark.parametrize("left", [1, 11, 12, 20, 315])
def test_a_file_that_ends_in_a_record_keeps_those_before_it(tmp_path: Path, left: int) -> None:
    begin = len(_framed(RECORDS[:2]))
    lengths, damage = find_frames(_written(tmp_path, _framed(RECORDS)[: begin + left]))
    assert lengths.tolist() == [5, 0]
    assert damage == f"the file ends in it; the rest of the file, {left:,} bytes, is lost"


@pytest.mark.parametrize("place", [0, 5, 7, 9])
def test_a_damaged_length_ends_what_is_known(tmp_path: Path, place: int) -> None:
    data, begin = bytearray(_framed(RECORDS)), len(_framed(RECORDS[:2]))
    data[begin + place] ^= 0x40
    lengths, damage = find_frames(_written(tmp_path, bytes(data)))
    assert lengths.tolist() == [5, 0]
    assert damage == f"its length is damaged; the rest of the file, {len(data) - begin} bytes, is lost"


def test_something_else_has_no_records(tmp_path: Path) -> None:
    for data in (bytes(100_000), b"no records at all", b"short"):
        lengths, damage = find_frames(_written(tmp_path, data))
        assert lengths.tolist() == []
        assert damage is not None


def test_compression_is_known_by_how_a_file_begins(tmp_path: Path) -> None:
    plain = _framed(RECORDS)
    kinds = [find_compression(_written(tmp_path, data)) for data in (plain, gzip.compress(plain), b"")]
    assert kinds == ["", "GZIP", ""]
    for level in (1, 6, 9):
        assert find_compression(_written(tmp_path, zlib.compress(plain, level))) == "ZLIB"


def test_a_length_that_looks_like_a_mark_of_gzip_is_none(tmp_path: Path) -> None:
    plain = _framed([bytes(0x8B1F)])
    assert plain.startswith(b"\x1f\x8b")
    assert find_compression(_written(tmp_path, plain)) == ""
