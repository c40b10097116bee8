"""How long operations take, where only ratios mean something."""

from __future__ import annotations

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _seconds_by_kind() -> dict[str, float]:
    import keras
    from keras import layers

    from memfit.estimating.step_program import step_of

    convolutions = [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64, 64, 16)), *convolutions])
    model.compile("sgd", "mse", jit_compile=False)
    found: dict[str, float] = {}
    for op in step_of(model).at(8).graph.ops:
        found[op.kind] = found.get(op.kind, 0.0) + op.seconds
    return found


def test_what_tensorflow_fuses_takes_as_long_as_before() -> None:
    seconds = run_limited(_seconds_by_kind, "1GiB")
    assert "Conv2D" not in seconds
    assert seconds["_FusedConv2D"] > seconds["Conv2DBackpropFilter"] / 4
