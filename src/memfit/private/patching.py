"""Attributes of objects, classes and modules, replaced for a while; and modules that are not imported yet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
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


class AfterImport(MetaPathFinder):
    """Calls a function once the code of the module of that name has run; at once if it has already.

    A module that is looked for is not imported yet: TensorFlow looks for Keras as it starts, and imports it
    much later. So this stays until the module's code has run.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def install(self) -> None:
        """Look out for it."""
        if self._name in sys.modules:
            self._action()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Look out no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as all others would find it, with the function behind its code."""
        if fullname != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            self._go_behind(spec.loader)
        return spec

    def _go_behind(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]  # every loader of today has it

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                self.remove()
                self._action()

        loader.exec_module = exec_module  # type: ignore[attr-defined]
