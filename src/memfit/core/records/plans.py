"""The records of plans: the memory that a step will need, what is asked for, and the chosen way to train."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from memfit.core.errors import InvalidLever, UnusedArgument
from memfit.core.serialization import Record


@dataclass(frozen=True)
class Parts:
    """The bytes in memory at the peak of a step, by kind."""

    weights_bytes: int = 0  # and all other variables of the model, and constants
    gradients_bytes: int = 0  # all that the backward pass and the update have computed
    optimizer_bytes: int = 0
    activations_bytes: int = 0  # all that the forward pass has computed
    scratch_bytes: int = 0  # what kernels need while they run
    allocator_bytes: int = 0  # what the allocator hands out beyond what was asked for
    data_bytes: int = 0  # the batch


@dataclass(frozen=True)
class LayerBytes:
    """The bytes of a layer at the peak of a step; without a name, those of a line outside all layers."""

    name: str
    bytes: int
    line: str = ""  # of the user's code, that most of it comes from


Call = Literal["fit", "evaluate", "predict"]  # of a Keras model
Fit = Literal["for sure", "maybe", "no"]


@dataclass(frozen=True)
class Estimate(Record):
    """The memory that a step will need, known before it runs."""

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
    """The memory that a step will need at several batch sizes."""

    estimates: tuple[Estimate, ...]


Lever = Literal["micro_batch", "remat", "precision", "xla"]


@dataclass(frozen=True)
class Cut:
    """A segment of a model that is computed again: calls of a nested model, by position in our own order.

    Where the user's code is between the layers it is a layer alone, by its position among all layers, and
    start and stop are 0.
    """

    path: tuple[int, ...]  # positions of the nested models that it is in
    start: int
    stop: int

    @property
    def is_one_layer(self) -> bool:
        """Whether it is a layer alone."""
        return self.stop == 0


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
    """The measured peak, time and out-of-memory errors of a run of a choice."""

    choice: Choice
    limit_bytes: int | None
    peak_bytes: int | None
    seconds_per_step: float | None
    ooms: int


@dataclass(frozen=True)
class MeasuredRuns(Record):
    """The measurements of runs of one model on batches of one size on this machine, the newest last."""

    runs: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class OptimizerState:
    """The bytes that an optimizer keeps besides the weights, which no plan changes."""

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


def in_words(choice: Choice) -> str:
    """The levers of a choice, in a few words."""
    parts = []
    if has_note(choice, "Layers compute in"):
        parts.append(f"layers in {choice.precision.removeprefix('mixed_')}")
    if has_note(choice, "XLA "):
        parts.append("compiled by XLA" if choice.jit_compile else "without XLA")
    if choice.accumulation_steps > 1:
        parts.append(
            f"micro-batches of {choice.micro_batch_size}, {choice.accumulation_steps} for each update"
        )
    if choice.remat:
        segments = "1 segment" if len(choice.remat) == 1 else f"{len(choice.remat)} segments"
        parts.append(f"{segments} of the model computed again")
    if choice.one_phase:
        parts.append("old values on the host")
    return ", and ".join(parts) or "as it is"


def has_note(choice: Choice, beginning: str) -> bool:
    """Whether a note names a lever: a model may have been in 16 bits or compiled before the plan."""
    return any(note.startswith(beginning) for note in choice.notes)


def plan_arguments(budget_bytes: int, allow: Sequence[str], float32_layers: Sequence[str]) -> str:
    """The arguments of `memfit.plan` besides model and batch size, for the same plan, as Python code."""
    written = [f"budget={size_argument(budget_bytes)}"]
    written += [f"allow={json.dumps(list(allow))}"] if tuple(allow) != ("micro_batch", "remat") else []
    written += [f"float32_layers={json.dumps(list(float32_layers))}"] if float32_layers else []
    return ", ".join(written)


def size_argument(size: int) -> str:
    """A size as an argument in Python: in whole MiB where it is, else in bytes."""
    return f'"{size >> 20}MiB"' if size % (1 << 20) == 0 else str(size)


def what_a_split_changes(*, normalises: bool, draws: bool) -> list[str]:
    """The notes on a step in micro-batches; empty where its values are those of the whole batch.

    `normalises` means that BatchNormalization takes part, `draws` that a layer draws random numbers.
    """
    notes = []
    if normalises:
        notes.append("BatchNormalization takes its statistics from micro-batches.")
    if draws:
        notes.append("Random layers such as Dropout draw for each micro-batch.")
    return notes


LEVERS: tuple[Lever, ...] = get_args(Lever)
EXACT: tuple[Lever, ...] = ("micro_batch", "remat")  # the levers that are allowed by default


@dataclass(frozen=True)
class PlanRequest:
    """A model is to be trained on batches of a size within a budget, with levers that may be pulled."""

    batch_size: int
    budget_bytes: int
    allow: tuple[Lever, ...] = EXACT
    data: Any = None
    float32_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AllowedLevers:
    """The levers that a plan may pull, in their own order, and the layers that stay in float32."""

    levers: tuple[Lever, ...] = EXACT
    float32_layers: tuple[str, ...] = ()


def allowed_levers(allow: Iterable[str] | str, float32_layers: Iterable[str] | str) -> AllowedLevers:
    """The levers that the user allows; raise unless all of them are known and go together."""
    named, layers = _listed(allow), _listed(float32_layers)
    for name in named:
        if name not in LEVERS:
            raise InvalidLever(name, known=LEVERS)
    if layers and "precision" not in named:
        raise UnusedArgument(
            f"{', '.join(layers)} shall stay in float32, but no lower precision is allowed.",
            f"Expected precision among the levers, received {', '.join(named) or 'none'}.",
            suggestion=f"allow={(*named, 'precision')!r}",
        )
    return AllowedLevers(tuple(lever for lever in LEVERS if lever in named), layers)


def check_used(leave: AllowedLevers, *, planned: bool) -> None:
    """Raise where the user allows something, and no plan is made that could do it."""
    if leave != AllowedLevers() and not planned:
        raise UnusedArgument(
            f"{', '.join(leave.levers) or 'nothing'} is allowed, but no plan is made.",
            "Expected a budget, and neither a plan nor a micro-batch size.",
            suggestion='memfit.fit(model, x, y, budget="4GiB", allow=...)',
        )


def _listed(names: Iterable[str] | str | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
