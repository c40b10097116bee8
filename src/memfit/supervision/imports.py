"""Something done right after a module is first imported, whoever imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """Calls a function when the module of that name has been imported; at once if it has been already."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def install(self) -> None:
        """Look out for it."""
        if self._name in sys.modules:
            self._action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as all others would find it, with the function behind its code."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path))
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            self._go_behind(spec.loader)
        return spec

    def _go_behind(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]  # every loader of today has it

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._action()

        loader.exec_module = exec_module  # type: ignore[attr-defined]
