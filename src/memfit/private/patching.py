"""Attributes of objects, classes and modules, replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def overridden(owner: Any, name: str, function: Any) -> Iterator[None]:
    """Replace a method on one instance for a while, past Keras' attribute tracking."""
    attributes = vars(owner)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = function
    try:
        yield
    finally:
        if before is missing:
            del attributes[name]
        else:
            attributes[name] = before


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a class or module for a while."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
