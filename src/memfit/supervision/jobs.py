"""What a parent asks its child to do; it travels in the environment, and the child takes it out of there."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_NAME = "MEMFIT_JOB"


@dataclass(frozen=True)
class Job:
    """A script, and how it is to be run."""

    script: str  # a file, or the name of a module
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    is_guarded: bool = False
    budget_bytes: int | None = None  # else that of the machine
    allow: tuple[str, ...] = ("micro_batch", "remat")
    plans: bool = True
    parent: int = 0  # its process
    seed: int = 0  # of random numbers that the script does not seed itself
    folder: str = ""  # where the journal is
    checkpoints: str = ""  # the folder that they are in
    rungs: tuple[tuple[int, int], ...] = ()  # how far down its ladder each training begins

    def into(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment that carries it."""
        return {**environment, _NAME: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def out_of_environment(cls) -> Self:
        """The job that this process was started for."""
        return cls.from_fields(json.loads(os.environ.pop(_NAME)))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """A job from JSON."""
        tuples = {name: tuple(fields[name]) for name in ("arguments", "allow")}
        return cls(**fields | tuples | {"rungs": tuple((number, rung) for number, rung in fields["rungs"])})
