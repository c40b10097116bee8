"""Python's garbage collector and when it waits, and memory that nobody uses any more."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def no_collection() -> Iterator[None]:
    """Let no garbage be collected for a while.

    Where hundreds of thousands of objects are made and kept, as in a trace, it finds nothing and takes a
    third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def return_free_memory() -> None:
    """Have the C library give what is free back to the system; where it cannot, it stays free."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
