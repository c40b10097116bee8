"""Levers that are pulled on request, what would help where nothing fits, and what runs teach plans."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real

BATCH = 256
MIB = 1 << 20


def _activations(*, jit_compile: bool = False) -> Any:
    """Few weights, and activations that 16 bits halve."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((2048,))
    x = layers.PReLU(name="first")(x)
    for _ in range(8):
        x = layers.Activation("tanh")(x)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile("adam", "mse", jit_compile=jit_compile)
    return model


def _samples(count: int = 2 * BATCH) -> Any:
    import numpy as np

    x = np.random.default_rng(0).random((count, 2048), "float32")
    return x, x[:, :1]


def _pulled(home: str) -> dict[str, Any]:
    os.environ["MEMFIT_HOME"] = home
    seen: dict[str, Any] = {}
    _precision(seen)
    _overflow(seen)
    _xla(seen)
    _subclassed(seen)
    _nothing(seen)
    _auto(seen)
    return seen


def _precision(seen: dict[str, Any]) -> None:
    import memfit

    model, (x, y) = _activations(), _samples()
    policies = [layer.dtype_policy for layer in model.layers]
    as_is = memfit.plan(model, BATCH, "1GiB").chosen.safe_bytes
    budget = int(0.85 * as_is)
    history = memfit.fit(
        model, x, y, batch_size=BATCH, budget=budget, allow="precision", float32_layers=["first"], verbose=0
    )
    plan = history.run.plan
    seen["precision"] = [plan.chosen.precision, plan.chosen.exact, plan.chosen.float32_layers]
    seen["precision said"] = history.run.notes[0]
    seen["policies back"] = all(a is b.dtype_policy for a, b in zip(policies, model.layers, strict=True))
    plain = _activations().fit(x, y, batch_size=BATCH, verbose=0)
    seen["losses"] = [history.history["loss"][0], plain.history["loss"][0]]
    _learning(seen, budget)


def _learning(seen: dict[str, Any], budget: int) -> None:
    """What a run needed is kept, and if it is more than foreseen the next plan aims lower."""
    import dataclasses

    import keras

    import memfit
    from memfit.core.cache import recall
    from memfit.core.records import MeasuredRuns
    from memfit.core.records.plans import PlanRequest
    from memfit.planning.run_history import remember, structure_of

    model, (x, y) = _activations(), _samples()
    structure = structure_of(model, PlanRequest(BATCH, budget, data=(x[:1], y[:1])))
    slower = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-5)
    first = memfit.fit(model, x, y, batch_size=BATCH, budget=budget, callbacks=[slower], verbose=0).run
    kept = recall(MeasuredRuns, structure)
    seen["kept"] = [len(kept.runs), kept.runs[-1].choice == first.plan.chosen, kept.runs[-1].ooms]
    plan = memfit.plan(model, BATCH, budget)
    seen["nothing learnt"] = [plan.measured == (), plan.chosen == first.plan.chosen]
    more = int(1.05 * plan.chosen.safe_bytes)
    remember(structure, plan, dataclasses.replace(first, step_peak_bytes=more))
    cautious = memfit.fit(model, x, y, batch_size=BATCH, budget=budget, verbose=0).run.plan
    seen["learnt"] = [len(cautious.measured), cautious.chosen.safe_bytes < budget / 1.04]
    _other_plans(seen, model)


def _other_plans(seen: dict[str, Any], model: Any) -> None:
    """After micro-batches, a plan for whole batches is followed too; and not by a model that trains less."""
    import memfit
    from memfit.core.errors import UnusedArgument, WrongPlan

    x, y = _samples()
    whole = memfit.plan(model, BATCH, "1GiB")
    seen["whole again"] = memfit.fit(model, x, y, plan=whole, verbose=0).run.micro_batch_size
    model.get_layer("first").trainable = False
    model.compile("adam", "mse", jit_compile=False)
    refused = []
    for error, how in ((WrongPlan, {"plan": whole}), (UnusedArgument, {"allow": "precision"})):
        try:
            memfit.fit(model, x, y, verbose=0, **how)
        except error as raised:
            refused.append(str(raised).splitlines()[0])
    seen["refused"] = refused


def _overflow(seen: dict[str, Any]) -> None:
    """A layer that overflows in float16 stays in float32, and training goes on to finite losses."""
    import dataclasses

    import keras
    import numpy as np

    import memfit

    keras.utils.set_random_seed(0)
    inputs = keras.Input((64,))
    x = keras.layers.Dense(64, activation="relu", name="small")(inputs)
    x = keras.layers.Dense(64, name="large", kernel_initializer=keras.initializers.Constant(4e3))(x)
    x = keras.layers.Rescaling(1e-6, name="scaled")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(x))
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((64, 64), "float32"), np.ones((64, 1), "float32")
    plan = memfit.plan(model, 32, "1GiB")
    low = dataclasses.replace(plan.chosen, precision="mixed_float16", exact=False)
    history = memfit.fit(
        model, x, y, plan=dataclasses.replace(plan, chosen=low, fits_as_is=False), epochs=3, verbose=0
    )
    seen["overflow notes"] = [note for note in history.run.notes if "overflows" in note]
    seen["overflow losses"] = history.history["loss"]
    seen["optimizer back"] = type(model.optimizer).__name__


def _xla(seen: dict[str, Any]) -> None:
    import memfit

    model, (x, y) = _activations(jit_compile=True), _samples()
    needs = [memfit.estimate(model, BATCH, probe=False).safe_bytes]
    budget = int(0.95 * needs[0])
    plan = memfit.plan(model, BATCH, budget, allow="xla")
    history = memfit.fit(model, x, y, plan=plan, verbose=0)
    seen["xla"] = [plan.chosen.jit_compile, plan.fits_as_is, model.jit_compile, len(history.run.ooms)]


def _subclassed(seen: dict[str, Any]) -> None:
    """Layers of a model that is all code are computed again, and the weights are those of plain training."""
    import keras
    import numpy as np

    import memfit

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = [keras.layers.Dense(64, activation="tanh") for _ in range(3)]

        def call(self, x: Any) -> Any:
            for layer in self.inner:
                x = layer(x)
            return x

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [Block() for _ in range(4)]
            self.head = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    x, y = np.random.default_rng(0).random((8192, 64), "float32"), np.ones((8192, 1), "float32")

    def trained(share: float | None) -> list[Any]:
        keras.utils.set_random_seed(0)
        model = Net()
        model(x[:1])
        model.compile("sgd", "mse", jit_compile=False)
        if share is None:
            model.fit(x, y, batch_size=4096, shuffle=False, verbose=0)
            return list(model.get_weights())
        budget = int(share * memfit.plan(model, 4096, "1GiB", data=(x[:1], y[:1])).chosen.safe_bytes)
        plan = memfit.plan(model, 4096, budget, allow="remat", data=(x[:1], y[:1]))
        memfit.fit(model, x, y, plan=memfit.Plan.from_json(plan.to_json()), shuffle=False, verbose=0)
        seen["subclassed cuts"] = len(plan.chosen.remat)
        return list(model.get_weights())

    pairs = zip(trained(0.8), trained(None), strict=True)
    seen["subclassed difference"] = max(float(abs(ours - plain).max()) for ours, plain in pairs)


def _nothing(seen: dict[str, Any]) -> None:
    import memfit
    from memfit.core.errors import NothingFits

    model = _activations()
    try:
        memfit.plan(model, BATCH, "8MiB", allow="remat")
    except NothingFits as error:
        seen["advice"] = [[one.what, one.safe_bytes, one.enough] for one in error.shortfall.advice]
        seen["text"] = str(error)


def _auto(seen: dict[str, Any]) -> None:
    import memfit

    model = _activations()
    plan = memfit.plan(model, "auto", "16MiB")
    seen["auto"] = [plan.batch_size, plan.chosen.accumulation_steps, plan.largest_batch.micro_batch_size]
    x, y = _samples(2 * plan.batch_size)
    seen["auto ooms"] = len(memfit.fit(model, x, y, plan=plan, verbose=0).run.ooms)


def _as_advised(budget: int, allow: str) -> list[Any]:
    """Training in exactly what was said to be enough."""
    import memfit

    model, (x, y) = _activations(), _samples()
    plan = memfit.plan(model, BATCH, budget, allow=allow)
    run = memfit.fit(model, x, y, plan=plan, verbose=0).run
    return [len(run.ooms), run.steps]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home: Path = tmp_path_factory.mktemp("home")
    found: dict[str, Any] = computed_once("levers", lambda: run_limited(_pulled, None, home=str(home)))
    return found


def test_a_lower_precision_is_used_on_request_and_taken_back(seen: dict[str, Any]) -> None:
    policy, exact, kept = seen["precision"]
    assert policy in ("mixed_bfloat16", "mixed_float16")
    assert not exact
    assert kept == ["first"]
    assert f"layers in {policy.removeprefix('mixed_')}" in seen["precision said"]
    assert seen["policies back"]
    low, wide = seen["losses"]
    assert low == pytest.approx(wide, rel=0.02)


def test_what_overflows_in_float16_stays_in_float32(seen: dict[str, Any]) -> None:
    assert any(note.startswith("large stays in float32") for note in seen["overflow notes"])
    assert not any("small" in note for note in seen["overflow notes"])
    first, *_, last = seen["overflow losses"]
    assert last < first < float("inf")
    assert seen["optimizer back"] == "SGD"


def test_xla_is_switched_off_and_on_again(seen: dict[str, Any]) -> None:
    assert seen["xla"] == [False, False, True, 0]


def test_layers_of_a_subclassed_model_are_computed_again(seen: dict[str, Any]) -> None:
    assert 1 <= seen["subclassed cuts"] <= 4
    assert seen["subclassed difference"] < 1e-6


def test_runs_teach_the_next_plan(seen: dict[str, Any]) -> None:
    assert seen["kept"] == [1, True, 0]
    assert seen["nothing learnt"] == [True, True]
    assert seen["learnt"] == [1, True]


def test_a_plan_is_followed_whatever_was_before_and_refused_for_another_model(seen: dict[str, Any]) -> None:
    assert seen["whole again"] == BATCH
    assert seen["refused"] == [
        "this plan was made for another model, or with other versions; nothing was applied.",
        "precision is allowed, but no plan is made.",
    ]


def test_the_best_batch_fits(seen: dict[str, Any]) -> None:
    size, parts, largest = seen["auto"]
    assert parts == 1
    assert largest >= size > 1
    assert seen["auto ooms"] == 0


def test_what_would_help_does(seen: dict[str, Any]) -> None:
    (larger, budget, enough), (lever, _, lever_enough), *_ = seen["advice"]
    assert enough
    assert larger.startswith("a budget of ")
    assert f'budget="{budget // MIB}MiB"' in seen["text"]
    assert lever.startswith("allow micro_batch: needs up to ")
    assert run_limited(_as_advised, f"{budget // MIB}MiB", budget=budget, allow="remat") == [0, 2]
    assert lever_enough
    assert run_limited(_as_advised, "8MiB", budget=8 * MIB, allow="micro_batch") == [0, 2]
