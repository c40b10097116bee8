"""How much a Python function holds of what it encloses."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from memfit.diagnoses.watches.internals import EagerTensor, bytes_of

_MOST_OBJECTS = 2000


def held_bytes(function: Any) -> int:
    """The bytes of the arrays and tensors that a function reaches through what it encloses."""
    pending, seen, total = [function], set[int](), 0
    while pending and len(seen) < _MOST_OBJECTS:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, EagerTensor):
            total += bytes_of(thing)
        elif isinstance(getattr(thing, "nbytes", None), int) and hasattr(thing, "dtype"):
            total += thing.nbytes
        else:
            pending.extend(_held(thing))
    return total


def _held(thing: Any) -> Iterator[Any]:
    """What a thing holds itself; modules, classes and the globals of functions are everybody's."""
    if isinstance(thing, types.FunctionType):
        yield from thing.__defaults__ or ()
        yield from vars(thing).values()
        for cell in thing.__closure__ or ():
            if cell != types.CellType():
                yield cell.cell_contents
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif hasattr(thing, "__dict__") and not isinstance(thing, type | types.ModuleType):
        yield from vars(thing).values()
