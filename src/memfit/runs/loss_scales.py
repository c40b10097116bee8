"""The loss of a model scaled up while it trains in float16, so that small gradients are not lost."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras

from memfit.models import internals
from memfit.runs import keras_internals


def scale_loss(model: Any, changes: ExitStack) -> None:
    """Put a compiled model's optimizer into a LossScaleOptimizer until the changes are taken back.

    An optimizer from a `compile` in between stays, without the one that Keras put around it meanwhile.
    """
    before = getattr(model, "optimizer", None)
    if before is None or _scales(before):
        changes.callback(_take_out, model, but=before)
        return
    factor = before.loss_scale_factor  # which a LossScaleOptimizer takes away
    changes.callback(setattr, before, "loss_scale_factor", factor)
    scaling = keras.optimizers.LossScaleOptimizer(before)
    if before.built:
        # Not every optimizer notices that it was built before, and it must not get new slots.
        with keras_internals.overridden(before, "build", lambda variables: None):
            scaling.build(keras_internals.optimizer_targets(before))
    internals.put_optimizer(model, scaling)
    changes.callback(_take_out, model, ours=scaling)


def _take_out(model: Any, *, ours: Any = None, but: Any = None) -> None:
    """Put the inner optimizer back in the place of ours, or of one that Keras put around it by itself."""
    now: Any = getattr(model, "optimizer", None)
    if now is but or not _scales(now):
        return
    if now is ours or internals.compiled_with(model) is now.inner_optimizer:
        internals.put_optimizer(model, now.inner_optimizer)


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
