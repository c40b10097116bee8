"""A rematerialised model is the model: the same values, the same face, and back again."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _differences(how: str) -> dict[str, float]:
    """The largest difference of any variable, and of the logs, between a plain and a rematerialised run."""
    import keras
    import numpy as np

    import memfit
    from runs.rematted import KINDS, data_for
    from runs.training import every_variable

    keras.config.set_dtype_policy("mixed_float16" if how == "float16" else "float32")
    levels = 3 if how == "three levels" else 1

    def train(kind: str, *, remat: bool) -> tuple[list[Any], list[float]]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(5)
        model = KINDS[kind]()
        x, y = data_for(kind)
        if remat:
            memfit.remat(model, batch_size=8192, levels=levels)  # where activations matter
        model.compile("adam", "mse", run_eagerly=how == "eager", jit_compile=how == "XLA")
        options = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False, "validation_data": (x, y)}
        fit = model.fit
        if how == "guarded":
            history = memfit.fit(model, x, y, micro_batch_size=8, **options)
        else:
            history = fit(x, y, **options)
        values = [variable.numpy() for variable in every_variable(model)]
        return values, [value for name in sorted(history.history) for value in history.history[name]]

    found = {}
    for kind in KINDS:
        if how == "XLA" and kind == "masked":
            continue  # XLA on a CPU does not compile the loops of these layers with open shapes
        plain, logs = train(kind, remat=False)
        ours, our_logs = train(kind, remat=True)
        pairs = [*zip(plain, ours, strict=True), (np.array(logs), np.array(our_logs))]
        found[kind] = max(float(np.max(np.abs(a.astype("float64") - b))) for a, b in pairs if a.size)
    return found


@pytest.mark.parametrize("how", ["graph", "eager", "XLA", "float16", "three levels", "guarded"])
def test_every_value_is_the_plain_models(how: str) -> None:
    found = run_limited(_differences, None, how=how)
    assert {kind: difference for kind, difference in found.items() if difference > 2e-6} == {}
