"""Ten kinds of models under a limit that makes the full batch run out: not a bit is different afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from runs.zoo import BATCH, KINDS, SAME_AS_PLAIN, STEPS

pytestmark = pytest.mark.real

_WHOLE = ("GAN with two optimizers",)


def _train(kind: str, floatx: str, replay: dict[str, Any] | None) -> dict[str, Any]:
    import logging

    import memfit
    from runs.training import every_digest, prepare
    from runs.zoo import BATCH, data_for, make

    logging.getLogger("memfit").setLevel(logging.ERROR)
    prepare(floatx=floatx, deterministic=True)
    model = make(kind)
    memfit.devices.reset_peak()
    run = None if replay is None else memfit.Run.from_dict(replay)
    history = memfit.fit(model, **data_for(kind), batch_size=BATCH, verbose=0, micro_batch_size=run)
    return {"digest": every_digest(model), "run": history.run.to_dict(), "logs": history.history}


def _need(kind: str, floatx: str) -> dict[str, int]:
    """What weights and optimizer take, and the peak of a step at the full batch."""
    import memfit
    from runs.training import prepare
    from runs.zoo import BATCH, data_for, make

    prepare(floatx=floatx, deterministic=True)
    model = make(kind)
    data = data_for(kind, count=3 * BATCH)
    history = memfit.fit(model, **data, batch_size=BATCH, verbose=0)
    return {"base": memfit.devices.device_memory().current_bytes, "peak": history.run.peak_bytes}


def _limit(kind: str, floatx: str) -> str:
    need = run_limited(_need, "2GiB", kind=kind, floatx=floatx)
    return f"{(need['base'] + int(0.62 * (need['peak'] - need['base']))) // 2**20 + 1}MiB"


def _compare_with_plain(kind: str, replay: dict[str, Any]) -> float:
    """The largest difference of any variable between plain Keras and the recorded sizes, in float64."""
    import keras

    import memfit
    from runs.training import difference, prepare, variables
    from runs.zoo import BATCH, data_for, make

    prepare(floatx="float64", deterministic=True)
    plain, ours = make(kind), make(kind)
    data = data_for(kind)
    keras.utils.set_random_seed(11)
    plain.fit(**data, batch_size=BATCH, verbose=0)
    keras.utils.set_random_seed(11)
    memfit.fit(ours, **data, batch_size=BATCH, verbose=0, micro_batch_size=memfit.Run.from_dict(replay))
    return difference(variables(plain, metrics=False), variables(ours, metrics=False))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in _WHOLE])
def test_what_ran_out_is_bit_for_bit_what_never_did(kind: str) -> None:
    floatx = "float64" if kind in SAME_AS_PLAIN else "float32"
    limited = run_limited(_train, _limit(kind, floatx), kind=kind, floatx=floatx, replay=None)
    run = limited["run"]
    assert run["ooms"], "the limit did not bite"
    assert run["steps"] == STEPS
    assert run["micro_batches"][-1]["micro_batch_size"] < BATCH
    roomy = run_limited(_train, "2GiB", kind=kind, floatx=floatx, replay=run)
    assert roomy["run"]["ooms"] == []
    assert roomy["run"]["micro_batches"] == run["micro_batches"]
    assert limited["digest"] == roomy["digest"]
    assert limited["logs"] == roomy["logs"]
    if kind in SAME_AS_PLAIN:
        assert run_limited(_compare_with_plain, "2GiB", kind=kind, replay=run) < 1e-12
