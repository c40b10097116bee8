"""The checksums of TFRecord files (masked CRC-32C), of many records at once with NumPy.

Python has no CRC-32C, and going byte by byte would take longer than decoding. All of it is arithmetic of
polynomials over bits, where adding is XOR: so records are shortened by XOR alone as far as that goes. What is
left is folded in halves, with tables that say what a number becomes when so many bytes follow it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
# Four bytes that bring a register of zeros to ones, which a checksum begins with.
_BEGIN = np.array([0x54, 0x64, 0x1F, 0x64], np.uint8)
# x^6777 + x^484 + x^100 + 1 and x^437 + x^177 + x^176 + x^171 + x^58 + 1 are multiples of the polynomial, as
# trying has shown, and so are the same of x^8, x^16, …: so a byte may be left out if it is added at all these
# distances behind it, or at all of twice, four times these distances.
_FAR = (6777 - 484, 6777 - 100, 6777)
_NEAR = (437 - 177, 437 - 176, 437 - 171, 437 - 58, 437)
_SCALES = (8, 4, 2, 1)  # more would not stay in the processor's cache
_LONG_BYTES = 16 << 10
_TOGETHER = 64


def all_match(records: Sequence[Bytes], checksums: Words) -> bool:
    """Whether all records match the checksums that stand behind them, found out with one of them all.

    A record with its register behind it has a checksum of zero, and so has the sum of such records, whatever
    zeros follow each. They end four bytes apart, or the same damage in two equal records would cancel out.
    """
    registers = _unmasked(np.asarray(checksums, "<u4"))
    sizes = np.array([len(record) for record in records], np.int64)
    ends = max(sizes, default=0) + 4 * np.arange(len(records), 0, -1) + 4
    begins = ends - 4 - sizes
    total = np.zeros(int(ends.max(initial=4)), np.uint8)
    total[-registers.nbytes or None :] ^= registers[::-1].copy().view(np.uint8)
    for begin, end, record in zip(begins.tolist(), ends.tolist(), records, strict=True):
        total[begin : end - 4] ^= record
    np.bitwise_xor.at(total, (begins[:, None] - 4 + np.arange(4)).ravel(), np.tile(_BEGIN, len(records)))
    return bool(_folded(_shortened(total[None], _FAR, _NEAR)) == _folded(np.zeros((1, 4), np.uint8)))


def _unmasked(checksums: Words) -> Words:
    """The registers that give these checksums."""
    turned = checksums - np.uint32(_MASK)
    return np.asarray(~(turned << np.uint32(15) | turned >> np.uint32(17)), "<u4")


def masked_checksums(records: Sequence[bytes]) -> Words:
    """The checksum of each record, as it stands behind it in a file."""
    groups = [records[begin : begin + _TOGETHER] for begin in range(0, len(records), _TOGETHER)]
    found = [
        _folded(_shortened(_in_rows([_begun(record) for record in group]), _FAR, _NEAR)) for group in groups
    ]
    return np.concatenate([np.empty(0, np.uint32), *found])


def masked_checksums_of_lengths(lengths: npt.NDArray[np.uint64]) -> Words:
    """The checksum of each number of eight bytes."""
    rows = np.empty((len(lengths), 12), np.uint8)
    rows[:, :4] = _BEGIN
    rows[:, 4:] = np.ascontiguousarray(lengths, "<u8").view(np.uint8).reshape(-1, 8)
    return _folded(rows)


def _begun(record: bytes) -> Bytes:
    """A record behind the beginning; long ones are shortened alone, or all others would be filled up."""
    found = np.concatenate([_BEGIN, np.frombuffer(record, np.uint8)])
    return _shortened(found, _FAR) if len(found) > _LONG_BYTES else found


def _in_rows(records: Sequence[Bytes]) -> Bytes:
    width = max(map(len, records))
    rows = np.zeros((len(records), width), np.uint8)
    for row, record in zip(rows, records, strict=True):
        row[width - len(record) :] = record  # zeros in front change nothing
    return rows


def _shortened(rows: Bytes, *multiples: tuple[int, ...]) -> Bytes:
    """Rows with the same checksums, no longer than the last distance."""
    for distances in multiples:
        for scale in _SCALES:
            while (spare := rows.shape[-1] - scale * distances[-1]) > 0:
                size = min(spare, scale * distances[0])
                front, rows = rows[..., :size].copy(), rows[..., size:]
                for distance in distances:
                    rows[..., scale * distance - size :][..., :size] ^= front
    return rows


def _folded(rows: Bytes) -> Words:
    """The checksum of each row."""
    width = 1 << (rows.shape[1] - 1).bit_length()
    filled = np.zeros((len(rows), width), np.uint8)
    filled[:, width - rows.shape[1] :] = rows
    values, followed_by = filled.view("<u4"), 4
    while values.shape[1] > 1:
        values = _before(values[:, 0::2], followed_by) ^ values[:, 1::2]
        followed_by *= 2
    found = ~_before(values[:, 0], 4)
    turned = found >> np.uint32(15) | found << np.uint32(17)
    return turned + np.uint32(_MASK)


def _before(values: Words, followed_by: int) -> Words:
    """The values of registers after so many bytes of zeros."""
    tables = _tables(followed_by)
    parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, 4)
    found = tables[0].take(parts[..., 0])
    for place in (1, 2, 3):
        found ^= tables[place].take(parts[..., place])
    return np.asarray(found, np.uint32)


@functools.cache
def _tables(followed_by: int) -> Words:
    """The same for all values of each byte of a register."""
    if followed_by > 1:
        return _before(_tables(followed_by // 2), followed_by // 2)
    found = np.left_shift(np.arange(256, dtype=np.uint32), 8 * np.arange(4, dtype=np.uint32)[:, None])
    for _ in range(8):
        found = np.where(found & 1, found >> 1 ^ _POLYNOMIAL, found >> 1).astype(np.uint32)
    return np.asarray(found, np.uint32)
