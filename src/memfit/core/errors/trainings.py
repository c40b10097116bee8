"""Training that does not fit, or that cannot be made to."""

from __future__ import annotations

from typing import Any

from memfit.core.errors.base import MemfitError


class CannotGuard(MemfitError):
    """Training that cannot be guarded exactly; nothing has been changed."""

    def __init__(self, reason: str, *, suggestion: str) -> None:
        self.reason = reason
        super().__init__(f"memfit cannot guard this training: {reason}.", suggestion=suggestion)


class CannotRematerialise(MemfitError):
    """A model that cannot be cut into segments; it has not been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(
            f"memfit cannot rematerialise this model: {reason}.", *details, suggestion=suggestion
        )


class CannotEstimate(MemfitError):
    """A step whose memory cannot be known beforehand; nothing has been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(f"memfit cannot estimate this step: {reason}.", *details, suggestion=suggestion)


class WrongPlan(MemfitError, ValueError):
    """A plan for another model, for other batches, or made with other versions."""

    def __init__(self, what: str, *, expected: object, received: object, batch_size: int) -> None:
        self.expected, self.received = expected, received
        super().__init__(
            f"this plan was made for {what}; nothing was applied.",
            f"Expected {expected}, received {received}.",
            suggestion=f"plan = memfit.plan(model, batch_size={batch_size}, budget=...)",
        )


class CannotLowerPrecision(MemfitError):
    """A model that cannot compute in 16 bits; it has not been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(
            f"memfit cannot let this model compute in 16 bits: {reason}.", *details, suggestion=suggestion
        )


class NotFinite(CannotLowerPrecision):
    """Numbers that are not finite in float32 either; nothing has been changed."""

    def __init__(self, layer: str | None) -> None:
        self.layer = layer
        where = "the loss or a gradient" if layer is None else f"layer {layer}"
        super().__init__(
            "on this batch its numbers are not finite in float32 either",
            f"The first that are not come from {where}.",
            suggestion="a smaller learning rate, smaller numbers in the batch, or weights from before",
        )


class NothingToGain(CannotRematerialise):
    """Computing activations again would save next to nothing."""

    def __init__(self, plain_bytes: int, peak_bytes: int, *, batch_size: int, left_plain: str | None) -> None:
        self.plain_bytes, self.peak_bytes = plain_bytes, peak_bytes
        super().__init__(
            "computing activations again would save next to nothing",
            f"Activations and gradients, batch of {batch_size}: {plain_bytes:,} bytes as it is, "
            f"{peak_bytes:,} bytes at best.",
            *([] if left_plain is None else [left_plain]),
            suggestion="memfit.fit(model, ...), which splits batches instead",
        )


class DoesNotFit(MemfitError):
    """Not even the smallest step fits; the model is as it was before the step.

    `.onednn` says whether it may fit with oneDNN or without; None where that makes no difference.
    """

    exit_code = 3

    def __init__(
        self,
        fact: str,
        *details: str,
        suggestion: str,
        limit_bytes: int | None,
        onednn: bool | None = None,
    ) -> None:
        self.limit_bytes, self.onednn = limit_bytes, onednn
        super().__init__(fact, *details, suggestion=suggestion)


class NothingFits(DoesNotFit):
    """No plan that is allowed fits a budget; `.shortfall` is the record of what was found."""

    def __init__(
        self, fact: str, *details: str, suggestion: str, shortfall: Any, onednn: bool | None = None
    ) -> None:
        self.shortfall = shortfall
        limit_bytes = shortfall.budget_bytes
        super().__init__(fact, *details, suggestion=suggestion, limit_bytes=limit_bytes, onednn=onednn)


class TornUpdate(MemfitError):
    """An update that ran out half-way, twice, and could go neither forward nor back."""

    def __init__(self, done: int, groups: int) -> None:
        self.done, self.groups = done, groups
        super().__init__(
            f"the update of the weights stopped half-way: {done} of {groups} groups of variables are done.",
            "Memory that was free before the update was taken by something else while it ran.",
            "The weights belong to two different steps.",
            suggestion="load the last checkpoint; a larger limit leaves room for the update",
        )


class NotAModel(MemfitError, TypeError):
    """Something else than a Keras model; nothing has been let go of."""

    def __init__(self, received: object) -> None:
        self.received_type = type(received).__name__
        super().__init__(
            "only a Keras model can be released.",
            "Expected: a keras.Model",
            f"Received: {self.received_type}",
            suggestion="memfit.release(model)",
        )
