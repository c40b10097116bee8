"""The checkpoints of a run: the newest few of each training, and the last one of those that are over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memfit.errors import DamagedCheckpoint
from memfit.supervision.files import Array, read_checkpoint, write_checkpoint

_NAME = re.compile(r"training-(\d+)-(?:step-(\d+)|end)\.checkpoint")

Contents = tuple[dict[str, Any], dict[str, Array]]


class Shelf:
    """A folder of checkpoints; a training is known by its number, counted from one."""

    def __init__(self, folder: Path, *, newest: int = 2) -> None:
        self._folder, self._newest = folder, newest
        folder.mkdir(parents=True, exist_ok=True)
        for torn in folder.glob(".training-*"):
            torn.unlink(missing_ok=True)

    def put(
        self, training: int, step: int | None, says: Mapping[str, Any], arrays: Iterable[tuple[str, Array]]
    ) -> int:
        """Keep a checkpoint of a training after a step, or with none of its end; how many bytes it takes.

        Those before the newest few go, and all of them when the training is over.
        """
        size = write_checkpoint(self._path(training, step), says, arrays)
        for path in self._steps_of(training)[0 if step is None else self._newest :]:
            path.unlink(missing_ok=True)
        return size

    def empty(self) -> None:
        """Keep nothing: the script has come to its end."""
        for path in self._folder.glob("training-*.checkpoint"):
            path.unlink(missing_ok=True)

    def end_of(self, training: int) -> Contents | None:
        """The last checkpoint of a training that is over; None if it is not, or its checkpoint is damaged."""
        return next(self._sound([self._path(training, None)]), None)

    def newest_of(self, training: int) -> Contents | None:
        """The newest checkpoint of a training that is not damaged; None where there is none."""
        return next(self._sound(self._steps_of(training)), None)

    def _sound(self, paths: list[Path]) -> Iterator[Contents]:
        for path in paths:
            with suppress(DamagedCheckpoint, FileNotFoundError):
                yield read_checkpoint(path)

    def _path(self, training: int, step: int | None) -> Path:
        return self._folder / f"training-{training}-{'end' if step is None else f'step-{step}'}.checkpoint"

    def _steps_of(self, training: int) -> list[Path]:
        """Those of one training that goes on, the newest first."""
        found = []
        for path in self._folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and int(name[1]) == training and name[2] is not None:
                found.append((int(name[2]), path))
        return [path for _, path in sorted(found, reverse=True)]
