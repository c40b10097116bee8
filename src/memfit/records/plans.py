"""Ways to train, what they come to, and what runs of them have measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record

Lever = Literal["micro_batch", "remat", "precision", "xla"]


@dataclass(frozen=True)
class Cut:
    """A segment of a model that is computed again: calls of a nested model, by position in our own order.

    Of a subclassed model it is a layer alone, by its position among all layers, and start and stop are 0.
    """

    path: tuple[int, ...]  # positions of the nested models that it is in
    start: int
    stop: int


@dataclass(frozen=True)
class Choice(Record):
    """One way to train: what is done to the step, and what that comes to."""

    micro_batch_size: int
    accumulation_steps: int
    remat: tuple[Cut, ...] | None
    precision: str
    jit_compile: bool
    peak_bytes: int
    safe_bytes: int
    relative_time: float  # of a step, against the plain one
    exact: bool  # whether the mathematics stay as they are
    notes: tuple[str, ...] = ()
    float32_layers: tuple[str, ...] = ()  # that the user wants to keep out of a lower precision
    one_phase: bool = False  # gradients are applied as they come; old values wait on the host


@dataclass(frozen=True)
class Measured:
    """What a run of a choice really came to."""

    choice: Choice
    limit_bytes: int | None
    peak_bytes: int | None
    seconds_per_step: float | None
    ooms: int


@dataclass(frozen=True)
class MeasuredRuns(Record):
    """What runs of one model on batches of one size came to on this machine, the newest last."""

    runs: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer keeps besides the weights, which no plan changes."""

    name: str
    bytes: int
    bytes_per_weight: float

    def is_notable(self, peak_bytes: int) -> bool:
        """Whether it is enough of a peak to be worth a word."""
        return self.bytes >= 0.1 * peak_bytes


@dataclass(frozen=True)
class Plan(Record):
    """The fastest way to train within a budget, and others."""

    budget_bytes: int
    batch_size: int
    fits_as_is: bool
    chosen: Choice
    alternatives: tuple[Choice, ...] = ()
    ladder: tuple[Choice, ...] = ()  # what to fall back on, each smaller than the one before
    left_out: tuple[str, ...] = ()
    fingerprint: str = ""  # of the model and the versions that it was made for
    seconds: float = 0.0
    optimizer: OptimizerState | None = None
    measured: tuple[Measured, ...] = ()  # runs that it goes by
    largest_batch: Choice | None = None  # where the batch size was to be found
    allow: tuple[Lever, ...] = ("micro_batch", "remat")

    def stepped_down(self, rungs: int) -> Plan:
        """The same with a choice further down the ladder, at most its last."""
        rungs = min(rungs, len(self.ladder))
        if rungs == 0:
            return self
        chosen, ladder = self.ladder[rungs - 1], self.ladder[rungs:]
        return dataclasses.replace(self, chosen=chosen, ladder=ladder, fits_as_is=False)


@dataclass(frozen=True)
class Advice:
    """Something that would help where nothing fits, and what a step then needs."""

    what: str
    safe_bytes: int
    enough: bool  # for the budget


@dataclass(frozen=True)
class Shortfall(Record):
    """Nothing that is allowed fits a budget: the smallest that was found, and what would help."""

    budget_bytes: int
    batch_size: int
    as_is_bytes: int
    smallest: Choice
    advice: tuple[Advice, ...]
    left_out: tuple[str, ...] = ()
