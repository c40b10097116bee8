"""Pressure that comes and goes: training goes on, and the micro-batch comes back."""

from __future__ import annotations

from typing import Any

import pytest

from guarding.zoo import BATCH
from limited import run_limited

pytestmark = pytest.mark.real

STEPS = 500
HELD = ((100, 150), (300, 350))  # steps in which something else holds memory


def _train() -> dict[str, Any]:
    import logging

    import keras
    import numpy as np

    import memfit
    from guarding.faults import Pressure
    from guarding.small_models import prepare

    logging.getLogger("memfit").setLevel(logging.ERROR)
    pressure = Pressure()
    prepare(floatx="float32")
    model = keras.Sequential([
        keras.Input((96, 64)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(64),
        keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile("adam", "mse", jit_compile=False)

    class ComesAndGoes(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch in (begin for begin, _ in HELD):
                pressure.leave(4 << 20)
            if epoch in (end for _, end in HELD):
                pressure.release()

    x = np.random.default_rng(0).random((BATCH, 96, 64), "float32")
    # Arrays stay on the host. A generator's thread would allocate in the pool, and in an exhausted one that
    # may end the process.
    history = memfit.fit(
        model, x, 0.01 * np.arange(BATCH), batch_size=BATCH, epochs=STEPS, verbose=0, shuffle=False,
        callbacks=[ComesAndGoes()], plan=False,
    )  # fmt: skip
    return {"run": history.run.to_dict(), "iterations": int(model.optimizer.iterations)}


def test_the_micro_batch_comes_back_when_the_pressure_is_gone() -> None:
    seen = run_limited(_train, "192MiB")
    run = seen["run"]
    assert (run["steps"], seen["iterations"]) == (STEPS, STEPS)
    sizes = {change["step"]: change["micro_batch_size"] for change in run["micro_batches"]}
    assert sizes[0] == BATCH

    def size_at(step: int) -> int:
        return sizes[max(at for at in sizes if at <= step)]

    for begin, end in HELD:
        assert size_at(begin) < BATCH, "the pressure did not bite"
        assert size_at(end + 50) == BATCH
    assert len(run["ooms"]) <= len(HELD), "what a step needs was known from the steps before"


def _whole_under_pressure(foresees: bool) -> dict[str, Any]:
    """A GAN cannot be split; pressure that is gone within TensorFlow's second wait costs it only time."""
    import logging
    import threading

    import keras

    import memfit
    from guarding.faults import Pressure, nothing_is_foreseen
    from guarding.small_models import every_digest, prepare
    from guarding.zoo import data_for, make

    logging.getLogger("memfit").setLevel(logging.ERROR)
    if not foresees:
        nothing_is_foreseen()
    pressure = Pressure()
    prepare(floatx="float32", deterministic=True)
    model = make("GAN with two optimizers")
    data = data_for("GAN with two optimizers")

    class Comes(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 7 and memfit.devices.limit_in_force() == 192 << 20:
                pressure.leave(6 << 20)
                threading.Timer(14, pressure.release).start()

    history = memfit.fit(model, **data, batch_size=BATCH, verbose=0, callbacks=[Comes()], plan=False)
    pressure.leave(6 << 20)
    before = every_digest(model)
    try:
        memfit.fit(model, **data, batch_size=BATCH, verbose=0, epochs=2, plan=False)
    except memfit.errors.DoesNotFit as error:
        message = str(error)
    metrics = len(model.metrics_variables)
    after = every_digest(model)
    changed = sum(a != b for a, b in zip(before, after, strict=True))
    return {
        "digest": before, "ooms": len(history.run.ooms), "notes": history.run.notes, "message": message,
        "changed": changed, "metrics": metrics,
    }  # fmt: skip


@pytest.mark.parametrize("foresees", [True, False])
def test_what_cannot_be_split_waits_or_goes_back_and_tries_again(foresees: bool) -> None:
    pressed = run_limited(_whole_under_pressure, "192MiB", foresees=foresees)
    assert pressed["ooms"] == (0 if foresees else 1)
    roomy = run_limited(_whole_under_pressure_reference, "1GiB")
    assert pressed["digest"] == roomy
    assert "the step makes 2 updates" in pressed["notes"][0]
    assert pressed["message"].startswith("a step on 64 samples does not fit")
    assert "It cannot be split: the step makes 2 updates." in pressed["message"]
    # Keras resets the metrics when an epoch begins; nothing else may have moved.
    assert pressed["changed"] <= pressed["metrics"]


def _whole_under_pressure_reference() -> list[str]:
    import memfit
    from guarding.small_models import every_digest, prepare
    from guarding.zoo import data_for, make

    prepare(floatx="float32", deterministic=True)
    model = make("GAN with two optimizers")
    memfit.fit(model, **data_for("GAN with two optimizers"), batch_size=BATCH, verbose=0)
    return every_digest(model)
