"""Sizes and counts as users write them: "8GiB" <-> int."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import SupportsIndex

from memfit.core.errors import InvalidMicroBatchSize, InvalidSize, MemfitError

_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = _UNITS[_letter] = 1024**_power

_SIZE = re.compile(r"([-+]?[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:e([0-9]{1,2}))?\s*([a-z]*)", re.ASCII)
_LARGEST = 2**63 - 1
_DTYPE_BYTES = {
    **dict.fromkeys(("complex128", "c128"), 16),
    **dict.fromkeys(("double", "float64", "int64", "uint64", "complex64", "f64", "s64", "u64", "c64"), 8),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "f32", "s32", "u32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "int16", "uint16", "f16", "bf16", "s16", "u16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8", "pred", "s8", "u8"), 1),
}
_NAMES = ("B", "KiB", "MiB", "GiB", "TiB")


def parse_size(size: str | SupportsIndex | float, name: str = "size", *, least_bytes: int = 1) -> int:
    """Turn a size into bytes; `name` is how the caller calls it, for the error.

    >>> parse_size("8GiB"), parse_size("512 MB"), parse_size("0.5g"), parse_size(4096)
    (8589934592, 512000000, 536870912, 4096)
    """
    number = _parse_text(size) if isinstance(size, str) else _parse_number(size)
    if number is None or number > _LARGEST:
        raise InvalidSize(size, name=name)
    if number < least_bytes:
        raise InvalidSize(size, name=name, expected=f"a size of at least {format_size(least_bytes)}")
    return int(number)


def _parse_text(text: str) -> Decimal | None:
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[3] not in _UNITS:
        return None
    return Decimal(match[1].replace("_", "")).scaleb(int(match[2] or 0)) * _UNITS[match[3]]


def _parse_number(number: SupportsIndex | float) -> int | None:
    if isinstance(number, bool):
        return None
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    try:
        return number.__index__()
    except (AttributeError, TypeError):
        return None


def format_size(size_bytes: int) -> str:
    """Write bytes for people, in binary units.

    >>> format_size(8589934592), format_size(512000000), format_size(0)
    ('8.0 GiB', '488.3 MiB', '0 B')
    """
    size, power = float(size_bytes), 0
    while abs(size) >= 1024 and power < 4:
        size, power = size / 1024, power + 1
    return f"{size:.1f} {_NAMES[power]}" if power else f"{size_bytes} B"


def dtype_bytes(name: str) -> int | None:
    """The bytes of one number of a type, by the name that TensorFlow, NumPy or XLA have for it.

    >>> dtype_bytes("float"), dtype_bytes("bf16"), dtype_bytes("string")
    (4, 2, None)
    """
    return _DTYPE_BYTES.get(name)


def checked_micro_batch_size(size: SupportsIndex | None) -> int | None:
    """The size of a micro-batch, or an error; None where none is given."""
    return None if size is None else checked_samples(size, InvalidMicroBatchSize)


def checked_samples(size: SupportsIndex, error: Callable[[object], MemfitError]) -> int:
    """A number of samples, or an error."""
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or number < 1:
        raise error(size)
    return number
