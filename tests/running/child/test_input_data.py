"""Pipelines of supervised trainings: said what they hold, capped, and otherwise as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited
from memfit.running.journal.events import DataEvent
from memfit.running.journal.run_folder import read_events

pytestmark = pytest.mark.real


def _train(folder: str) -> dict[str, Any]:
    import contextlib
    import io
    import warnings

    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.running.checkpoints.store import ChildContext
    from memfit.running.child import input_data
    from memfit.running.child.patches import Patches, PlanningOptions
    from memfit.running.journal.run_folder import Job

    context = ChildContext.of(Job("script.py", folder=folder, checkpoints=f"{folder}/checkpoints"))
    rows = np.arange(80, dtype="float32").reshape(20, 4)
    small = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4)
    own = tf.data.Options()
    own.autotune.ram_budget = 5 << 20
    seen: dict[str, Any] = {"budgets": {}}

    def look(number: int, **given: Any) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            fed = input_data.InputPipelines(context, number, given)
            fed.look()
            fed.look()
        for name, dataset in fed.pipelines.items():
            seen["budgets"][f"{number} {name}"] = dataset.options().autotune.ram_budget
        return said.getvalue()

    def epochs(dataset: Any) -> list[Any]:
        return [[[part.numpy().tolist() for part in batch] for batch in dataset] for _ in range(2)]

    seen["nothing"] = [
        look(1, x=rows, y=rows[:, :1]),
        look(2, x=small, validation_data=small),
        look(3, x=small.with_options(own)),
    ]
    check, input_data.check = input_data.check, None  # type: ignore[assignment]
    seen["broken"] = look(4, x=small)
    input_data.check = check
    tf.random.set_seed(2)
    plain = epochs(small.shuffle(5))
    tf.random.set_seed(2)
    seen["same"] = (
        epochs(input_data.InputPipelines(context, 0, {"x": small.shuffle(5)}).pipelines["x"]) == plain
    )
    seen["available"] = input_data._available_bytes()

    Patches(PlanningOptions(None, (), plans=False), context).install()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    large = small.filter(lambda x, y: True).shuffle(1_000_000)
    with contextlib.redirect_stderr(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(large, epochs=2, verbose=0)
    seen["large"] = said.getvalue()
    return seen


def test_large_buffers_are_told_of_and_all_are_capped(tmp_path: Path) -> None:
    seen = run_limited(_train, "400MiB", folder=str(tmp_path))
    # Nothing is said of arrays and of small pipelines.
    assert seen["nothing"] == ["", "", ""]
    # The limit on the device is what pipelines have to share; a budget of the script's own stays.
    assert seen["available"] == 400 << 20
    share = 50 << 20
    assert seen["budgets"] == {"2 x": share, "2 validation_data": share, "3 x": 5 << 20, "4 x": share}
    assert seen["same"]
    # A check that fails is told, and the training goes on.
    assert seen["broken"].startswith("memfit: The data of training 4 could not be checked: TypeError")
    # Each is told once.
    assert seen["large"].count("memfit: ") == 1
    words = "The data of training 1 (x) may hold more than 25% of the 400.0 MiB that are available."
    assert words in seen["large"]
    assert "A shuffle buffer of up to 1,000,000 batches of 80 B." in seen["large"]

    events = [event for event in read_events(tmp_path / "journal.jsonl") if isinstance(event, DataEvent)]
    named = [(event.training, event.argument) for event in events]
    assert named == [(2, "x"), (2, "validation_data"), (3, "x"), (4, None), (1, "x")]
    assert (events[3].reason or "").startswith("TypeError")
    assert [len(event.warnings) for event in events] == [0, 0, 0, 0, 1]
