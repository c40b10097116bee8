"""The way back of a step that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _optimizer_whose_slots_do_not_fit() -> dict[str, Any]:
    import keras
    import numpy as np

    from memfit.guarding.step.rollback import optimizers_kept_whole

    seen: dict[str, Any] = {}
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    count = len(model.optimizer.variables)
    try:
        with optimizers_kept_whole(model):
            model.optimizer.build(model.trainable_variables)
            raise MemoryError
    except MemoryError:
        seen["kept whole"] = [model.optimizer.built, len(model.optimizer.variables) == count]
    model.fit(x, y, verbose=0)
    seen["builds afterwards"] = len(model.optimizer.variables) - count
    return seen


def test_an_optimizer_is_never_half_built() -> None:
    seen = run_limited(_optimizer_whose_slots_do_not_fit, "512MiB")
    assert seen["kept whole"] == [False, True], "slots that did not fit would be there twice"
    assert seen["builds afterwards"] == 4
