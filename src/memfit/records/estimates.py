"""What a step will need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record


@dataclass(frozen=True)
class Parts:
    """What is in memory at the peak of a step."""

    weights_bytes: int = 0  # and all other variables of the model, and constants
    gradients_bytes: int = 0  # all that the backward pass and the update have computed
    optimizer_bytes: int = 0
    activations_bytes: int = 0  # all that the forward pass has computed
    scratch_bytes: int = 0  # what kernels need while they run
    allocator_bytes: int = 0  # what the allocator hands out beyond what was asked for
    data_bytes: int = 0  # the batch


@dataclass(frozen=True)
class LayerBytes:
    """What a layer holds at the peak of a step; without a name, what a line outside all layers does."""

    name: str
    bytes: int
    line: str = ""  # of the user's code, that most of it comes from


Call = Literal["fit", "evaluate", "predict"]  # of a Keras model
Fit = Literal["for sure", "maybe", "no"]


@dataclass(frozen=True)
class Estimate(Record):
    """What a step will need, known before it runs."""

    batch_size: int
    method: Literal["graph", "xla"]
    peak_bytes: int  # expected of a warm step, weights and optimizer included, as the allocator counts it
    low_bytes: int  # what a run does not stay under
    safe_bytes: int  # what a run stays under
    parts: Parts
    layers: tuple[LayerBytes, ...]  # the largest first
    timeline: tuple[int, ...] = ()  # the most in use in each of equal parts of the step
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    budget_bytes: int | None = None
    fits: Fit | None = None  # whether it runs where no more than the budget is to be had
    probed: bool = False  # whether kernels were run on a few samples to see what they need


@dataclass(frozen=True)
class Estimates(Record):
    """What a step will need at several batch sizes."""

    estimates: tuple[Estimate, ...]
