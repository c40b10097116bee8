"""A model of the user's, and data for it: found first, then loaded, for commands that trace its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memfit.commands.imports import user_code
from memfit.commands.options import output_set_aside
from memfit.commands.progress import waiting
from memfit.commands.targets import find_data, find_model, load_data, load_model
from memfit.devices import check_installed


@dataclass(frozen=True)
class Loaded:
    """What a command works on, and how it says what it is doing."""

    model: Any
    data: Any
    tell: Callable[[str], None]


class UsersModel:
    """Where a model is, and data for it if any was named; nothing of it has run yet."""

    def __init__(self, target: str, data: str | None) -> None:
        self._target = target
        self._where, self._data = find_model(target), None if data is None else find_data(data)
        check_installed()

    @contextmanager
    def loaded(self, *, quiet: bool) -> Iterator[Loaded]:
        """Load both; what is raised inside is the user's own, and what is printed is set aside."""
        with output_set_aside(), waiting(f"Loading {self._target}", quiet=quiet) as tell:
            model = load_model(self._where)
            data = None if self._data is None else load_data(self._data)
            suggestion = "model.train_on_batch(x, y), which raises the same"
            folder = self._where.folder
            with user_code(self._target, "when its step was traced", folder=folder, suggestion=suggestion):
                yield Loaded(model, data, tell)
