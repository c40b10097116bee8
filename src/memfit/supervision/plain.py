"""Plain values as JSON with the arrays in them beside it, and back: no code is kept, and none is run.

Numbers, text, lists, tuples, dictionaries and arrays, in any nesting; anything else is not plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memfit.supervision.files import Array

_ARRAY, _TUPLE, _DICTIONARY, _SCALAR = "array", "tuple", "dictionary", "scalar"


class NotPlain(TypeError):
    """A value that is more than data."""


def encode(value: Any, arrays: dict[str, Array], name: str) -> Any:
    """A value as JSON; arrays in it go into `arrays`, under names that begin with `name`."""
    if value is None or (isinstance(value, bool | str | int | float) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.generic):
        return {_SCALAR: [value.dtype.name, value.item()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV":
        arrays[name] = value
        return {_ARRAY: name}
    if type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}/{place}") for place, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if type(value) is dict:
        pairs = [
            [encode(key, arrays, f"{name}/key"), encode(item, arrays, f"{name}/{key}")]
            for key, item in value.items()
        ]
        return {_DICTIONARY: pairs}
    raise NotPlain(f"{name} is a {type(value).__name__}")


def decode(value: Any, arrays: dict[str, Array]) -> Any:
    """What was encoded."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == _ARRAY:
        return arrays[held]
    if kind == _TUPLE:
        return tuple(decode(item, arrays) for item in held)
    if kind == _SCALAR:
        return np.dtype(held[0]).type(held[1])
    return {decode(key, arrays): decode(item, arrays) for key, item in held}
