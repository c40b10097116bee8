"""Plans, made and followed under a hard limit equal to the budget."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

BATCH = 32
BUDGET = "112MiB"


def _autoencoder() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((64, 64, 3))
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(x))
    model.compile("adam", "mse", jit_compile=False)
    return model


def _images() -> Any:
    import numpy as np

    return np.random.default_rng(0).random((2 * BATCH, 64, 64, 3), "float32")


def _plain() -> list[list[float]]:
    model, x = _autoencoder(), _images()
    model.fit(x, x, batch_size=BATCH, shuffle=False, verbose=0)
    return [weight.ravel().tolist() for weight in model.get_weights()]


def _planned() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    import memfit
    from memfit.core.errors import DoesNotFit, WrongPlan
    from memfit.levers.rematerialised import remat_of

    model, x = _autoencoder(), _images()
    before = [weight.copy() for weight in model.get_weights()]
    seen: dict[str, Any] = {}
    plan = memfit.plan(model, BATCH, BUDGET)
    cut = memfit.plan(model, BATCH, BUDGET, allow=["remat", "micro_batch"])
    seen["same"] = plan.chosen == cut.chosen
    seen["untouched"] = [
        all((a == b).all() for a, b in zip(model.get_weights(), before, strict=True)),
        model.optimizer.built,
        remat_of(model),
    ]
    try:
        memfit.plan(model, BATCH, "1MiB")
    except DoesNotFit as error:
        seen["too little"] = "smallest found" in str(error)
    other = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Conv2D(3, 3, padding="same")])
    other.compile("adam", "mse")
    eights = tf.data.Dataset.from_tensor_slices((x, x)).batch(8, drop_remainder=True)
    for model_of, arguments in (
        (other, {"x": x, "y": x}),
        (model, {"x": x, "y": x, "batch_size": 8}),
        (model, {"x": eights}),
        (model, {"x": x, "y": x, "budget": "8MiB"}),
    ):
        try:
            memfit.fit(model_of, **arguments, plan=plan, verbose=0)
        except WrongPlan as error:
            seen.setdefault("wrong", []).append(str(error).splitlines()[0])
    history = memfit.fit(model, x, x, plan=memfit.Plan.from_json(plan.to_json()), shuffle=False, verbose=0)
    seen["said"] = history.run.notes[0]
    seen["run"] = [len(history.run.ooms), history.run.steps, history.run.micro_batch_size]
    seen["plan"] = [plan.fits_as_is, plan.chosen.exact, plan.chosen.micro_batch_size]
    seen["peak"] = [history.run.peak_bytes, plan.chosen.peak_bytes]
    seen["undone"] = remat_of(model)
    seen["weights"] = [weight.ravel().tolist() for weight in model.get_weights()]
    for _ in range(2):
        run = memfit.fit(model, x, x, batch_size=BATCH, budget=BUDGET, verbose=0).run
        assert run.plan is not None
        seen.setdefault("with a budget", []).append([run.plan.chosen == plan.chosen, len(run.ooms)])
        seen.setdefault("planned in", []).append(run.plan.seconds)
    ragged = tf.data.Dataset.from_tensor_slices((x, x)).batch(BATCH)
    run = memfit.fit(model, ragged, budget=BUDGET, verbose=0).run
    assert run.plan is not None
    planned = run.plan.chosen.micro_batch_size
    seen["smaller last batch"] = [run.plan.batch_size, run.micro_batch_size == planned]
    batches = (batch for batch in [(x[:BATCH], x[:BATCH])])
    run = memfit.fit(model, batches, budget=BUDGET, verbose=0).run
    seen["a generator"] = [run.plan and run.plan.chosen == plan.chosen, len(run.ooms)]
    return seen


def test_a_plan_fits_and_trains_as_if_there_were_no_limit() -> None:
    seen = run_limited(_planned, BUDGET)
    assert seen["same"]
    assert seen["untouched"] == [True, False, None]
    assert seen["too little"]
    assert seen["wrong"] == [
        "this plan was made for another model, or with other versions; nothing was applied.",
        "this plan was made for other batches; nothing was applied.",
        "this plan was made for other batches; nothing was applied.",
        "this plan was made for a larger budget; nothing was applied.",
    ]
    as_is, exact, micro_batch_size = seen["plan"]
    assert not as_is
    assert exact
    assert seen["said"].startswith(f"To stay within 112.0 MiB: micro-batches of {micro_batch_size}, ")
    assert seen["run"] == [0, 2, micro_batch_size]  # no out-of-memory error
    really, expected = seen["peak"]
    assert 0.75 * expected < really < 1.25 * expected
    assert seen["undone"] is None
    assert seen["with a budget"] == [[True, 0]] * 2
    first, second = seen["planned in"]
    assert first == second  # it was planned once and kept
    assert seen["smaller last batch"] == [BATCH, True]
    assert seen["a generator"] == [True, 0]
    for ours, plain in zip(seen["weights"], run_limited(_plain, None), strict=True):
        assert max(abs(a - b) for a, b in zip(ours, plain, strict=True)) < 2e-5


def _under_a_limit() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    import memfit

    x, seen = _images(), dict[str, Any]()
    how = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model = _autoencoder()
    run = memfit.fit(model, x, x, **how).run
    seen["planned"] = [run.plan is not None, len(run.ooms), run.micro_batch_size < BATCH]
    seen["weights"] = [weight.ravel().tolist() for weight in model.get_weights()]
    seen["guard alone"] = memfit.fit(model, x[:2], x[:2], **how, plan=False).run.plan
    small = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    small.compile("adam", "mse")
    run = memfit.fit(small, x[:8, 0, :8, 0], x[:8, 0, :4, 0], **how).run
    seen["plainly enough"] = [run.plan, list(run.notes)]
    held = tf.zeros((16 << 20,), tf.uint8)
    wide = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(1024) for _ in range(4))])
    wide.compile("adam", "mse", jit_compile=False)
    rows = x.reshape(-1, 256)[:4096]
    run = memfit.fit(wide, rows, rows[:, :1], batch_size=4096, verbose=0).run
    seen["beside others"] = [run.plan and run.plan.budget_bytes, len(held), len(run.ooms)]
    del held, wide
    run = memfit.fit(_autoencoder(), x[:BATCH], x[:BATCH], **how, budget="80MiB").run
    seen["nothing for sure"] = [run.plan, run.micro_batch_size, len(run.ooms), run.notes[0]]
    return seen


def _of_pairs(y_true: Any, y_pred: Any) -> Any:
    """A loss that compares each sample with the next one."""
    import keras

    ops = keras.ops
    near = ops.mean((y_pred - ops.roll(y_pred, 1, axis=0)) ** 2, axis=(1, 2, 3))
    return ops.mean(near * ops.mean((y_true - ops.roll(y_true, 1, axis=0)) ** 2, axis=(1, 2, 3)))


def _compared() -> dict[str, Any]:
    import memfit

    model, x = _autoencoder(), _images()
    model.compile("adam", _of_pairs, jit_compile=False)
    run = memfit.fit(model, x, x, batch_size=BATCH, shuffle=False, verbose=0).run
    chosen = run.plan.chosen if run.plan else None
    return {"sizes": [run.micro_batch_size, chosen and chosen.micro_batch_size], "notes": list(run.notes)}


def test_what_compares_samples_with_each_other_is_never_planned_in_parts() -> None:
    seen = run_limited(_compared, "160MiB")
    size, planned_size = seen["sizes"]
    assert size == BATCH
    assert planned_size in (None, BATCH)
    assert any("Batches are not split" in note for note in seen["notes"])


def test_under_a_limit_fit_plans_by_itself() -> None:
    seen = run_limited(_under_a_limit, BUDGET)
    assert seen["planned"] == [True, 0, True]
    assert seen["guard alone"] is None
    assert seen["plainly enough"] == [None, []]
    budget_bytes, held_bytes, ooms = seen["beside others"]
    assert (112 << 20) - 2 * held_bytes < budget_bytes < (112 << 20) - held_bytes // 2
    assert ooms == 0
    assert seen["nothing for sure"] == [
        None,
        1,
        0,
        "No plan was made: nothing allowed fits a batch of 32 in 80.0 MiB for sure. "
        "Training starts with micro-batches of 1, which may fit.",
    ]
    for ours, plain in zip(seen["weights"], run_limited(_plain, None), strict=True):
        assert max(abs(a - b) for a, b in zip(ours, plain, strict=True)) < 2e-5
