"""Where nothing fits with the kernels that run, the plan says whether it would with the others."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _shortfall(budget: str) -> dict[str, Any]:
    import keras
    from keras import layers

    import memfit

    hidden = [layers.Conv3D(width, 3, padding="same", activation="relu") for width in (16, 32)]
    model = keras.Sequential([keras.Input((8, 32, 32, 1)), *hidden, layers.GlobalAveragePooling3D()])
    model.compile("sgd", "mse", jit_compile=False)
    try:
        memfit.plan(model, 16, budget=budget, allow=())
    except memfit.errors.NothingFits as error:
        advice = [one.what for one in error.shortfall.advice]
        return {"onednn": error.onednn, "advice": [one for one in advice if "oneDNN" in one]}
    return {"fits": True}


def test_what_fits_with_onednn_alone_is_named_where_it_is_off() -> None:
    """TensorFlow's own kernels of 3-D convolutions take several times the memory of oneDNN's."""
    worlds = [{"TF_ENABLE_ONEDNN_OPTS": world} for world in ("0", "1")]
    off, on = (run_limited(_shortfall, None, environment=world, budget="96MiB") for world in worlds)
    assert on == {"fits": True}
    assert off["onednn"] is True
    (advice,) = off["advice"]
    assert advice.startswith('memfit.limit("96MiB", onednn=True) before TensorFlow is imported: with oneDNN')
    for world in worlds:
        assert run_limited(_shortfall, None, environment=world, budget="2MiB") == {
            "onednn": None,
            "advice": [],
        }
