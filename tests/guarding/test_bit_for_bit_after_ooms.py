"""Ten kinds of models under a limit that makes the full batch run out: not a bit is different afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.zoo import BATCH, KINDS, SAME_AS_PLAIN, STEPS
from limited import run_limited

pytestmark = pytest.mark.real

_WHOLE = ("GAN with two optimizers",)
_CONVOLVES = ("convolution", "convolution with BatchNorm", "inputs and outputs")  # in blocks that stay large
_LOOPS = ("LSTM",)  # TensorFlow may wait for ever in a loop that runs out, so that once has to do


def _train(
    kind: str, floatx: str, replay: dict[str, Any] | None, *, and_plain: bool = False
) -> dict[str, Any]:
    """A guarded run, and how far plain Keras comes out from it where that is asked."""
    import logging

    import keras

    import memfit
    from guarding.small_models import difference, every_digest, join_the_pool, prepare, variables
    from guarding.zoo import BATCH, data_for, make

    logging.getLogger("memfit").setLevel(logging.ERROR)
    prepare(floatx=floatx, deterministic=True)
    join_the_pool()
    model, data = make(kind), data_for(kind)
    memfit.devices.reset_peak()
    run = None if replay is None else memfit.Run.from_dict(replay)
    keras.utils.set_random_seed(11)
    history = memfit.fit(model, **data, batch_size=BATCH, verbose=0, micro_batch_size=run, plan=False)
    seen = {"digest": every_digest(model), "run": history.run.to_dict(), "logs": history.history}
    if and_plain:
        plain = make(kind)
        keras.utils.set_random_seed(11)
        plain.fit(**data, batch_size=BATCH, verbose=0)
        seen["from plain"] = difference(variables(plain, metrics=False), variables(model, metrics=False))
    return seen


def _need(kind: str, floatx: str) -> dict[str, int]:
    """What weights and optimizer take, and the peak of a step at the full batch, in a pool in one piece."""
    import memfit
    from guarding.small_models import join_the_pool, prepare
    from guarding.zoo import BATCH, data_for, make

    prepare(floatx=floatx, deterministic=True)
    join_the_pool()
    model = make(kind)
    data = data_for(kind, count=3 * BATCH)
    memfit.devices.reset_peak()
    history = memfit.fit(model, **data, batch_size=BATCH, verbose=0, plan=False)
    return {"base": memfit.devices.device_memory().current_bytes, "peak": history.run.peak_bytes}


def _limit(kind: str, floatx: str) -> str:
    """About half of what a step needs: with little room a pool rounds up less, by a third of some peaks."""
    need = run_limited(_need, "2GiB", kind=kind, floatx=floatx)
    share = 0.62 if kind in (*_CONVOLVES, *_LOOPS) else 0.5
    return f"{(need['base'] + int(share * (need['peak'] - need['base']))) // 2**20 + 1}MiB"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in _WHOLE])
def test_what_ran_out_is_bit_for_bit_what_never_did(kind: str) -> None:
    same_as_plain = kind in SAME_AS_PLAIN
    floatx = "float64" if same_as_plain else "float32"
    limited = run_limited(_train, _limit(kind, floatx), kind=kind, floatx=floatx, replay=None)
    run = limited["run"]
    if kind not in _LOOPS:  # what loops keep is foreseen
        assert run["ooms"], "the limit did not bite"
    assert run["steps"] == STEPS
    assert run["micro_batches"][-1]["micro_batch_size"] < BATCH
    roomy = run_limited(_train, "2GiB", kind=kind, floatx=floatx, replay=run, and_plain=same_as_plain)
    assert roomy["run"]["ooms"] == []
    assert roomy["run"]["micro_batches"] == run["micro_batches"]
    assert limited["digest"] == roomy["digest"]
    assert limited["logs"] == roomy["logs"]
    if same_as_plain:
        assert roomy["from plain"] < 1e-12
