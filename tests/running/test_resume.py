"""Trainings that are killed again and again, on data of every kind: not a bit is different afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from limited import run_limited
from memfit.core.errors import ChildFailed
from memfit.running.journal.events import StepEvent
from memfit.running.journal.run_folder import read_events
from running.data_kinds import BATCH

pytestmark = pytest.mark.real

# Where each kind of data is killed: after so many updates, counted in the training itself.
KILLS = {
    "arrays": [5, 11],
    "dataset": [2, 9],
    "dataset of unknown length": [3, 8],
    "shards": [7],
    "PyDataset": [10],
    "PyDataset with workers": [9],
    "generator": [3, 9],
    "generator with NumPy's own numbers": [6],
    "several steps at once": [9],
    "model that is built by its data": [4],
    "loss of its own": [9],
}
EPOCHS = 3


def _script(folder: str, kinds: list[str], rungs: list[list[int]] = ()) -> dict[str, Any]:  # type: ignore[assignment]
    """What a supervised script does: it trains on one kind of data after the other."""
    import os
    import signal

    import keras
    import tensorflow as tf

    from guarding.small_models import digest
    from memfit.running.checkpoints.store import ChildContext, Pace
    from memfit.running.child.patches import Patches, PlanningOptions, seed_everything
    from memfit.running.journal.run_folder import Job
    from running.data_kinds import make

    down = tuple((number, rung) for number, rung in rungs)
    context = ChildContext.of(
        Job("script.py", folder=folder, checkpoints=f"{folder}/checkpoints", rungs=down)
    )
    context.writer.pace = Pace(share=1.0, least_seconds=0.0)
    seed_everything(5)
    Patches(PlanningOptions(None, (), plans=False), context).install()
    tf.config.experimental.enable_op_determinism()
    kills = Path(folder) / "kills.json"

    class Dies(keras.callbacks.Callback):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.seen = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1
            left = json.loads(kills.read_text())
            if left.get(self.kind, [0])[0] == int(self.model.optimizer.iterations) > 0:
                left[self.kind] = left[self.kind][1:] or [0]
                kills.write_text(json.dumps(left))
                context.writer.wait()
                os.kill(os.getpid(), signal.SIGKILL)

    found: dict[str, Any] = {}
    for kind in kinds:
        model, arguments = make(kind)
        dies = Dies(kind)
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
        history = model.fit(**arguments, epochs=EPOCHS, verbose=0, callbacks=[dies, stopping])
        found[kind] = {
            "digest": digest(model),
            "history": history.history,
            "epochs": history.epoch,
            "steps": dies.seen,
            "best": float(stopping.best),
        }
    return found


def _start(folder: Path, kills: dict[str, list[int]]) -> None:
    folder.mkdir()
    (folder / "kills.json").write_text(json.dumps(kills))


def _groups(count: int) -> list[list[str]]:
    names = list(KILLS)
    return [names[place::count] for place in range(count)]


@pytest.mark.parametrize("kinds", _groups(3), ids=["first", "second", "third"])
def test_what_was_killed_is_bit_for_bit_what_never_was(tmp_path: Path, kinds: list[str]) -> None:
    _start(tmp_path / "whole", {})
    whole = run_limited(_script, "512MiB", folder=str(tmp_path / "whole"), kinds=kinds)
    wanted = {kind: KILLS[kind] for kind in kinds}
    _start(tmp_path / "killed", wanted)
    for _ in range(sum(map(len, wanted.values()))):
        with pytest.raises(ChildFailed):
            run_limited(_script, "512MiB", folder=str(tmp_path / "killed"), kinds=kinds)
    assert json.loads((tmp_path / "killed" / "kills.json").read_text()) == {kind: [0] for kind in kinds}
    assert run_limited(_script, "512MiB", folder=str(tmp_path / "killed"), kinds=kinds) == whole


def test_after_a_kill_for_memory_micro_batches_are_smaller(tmp_path: Path) -> None:
    _start(tmp_path / "killed", {"loss of its own": [9]})
    how = {"folder": str(tmp_path / "killed"), "kinds": ["loss of its own"]}
    with pytest.raises(ChildFailed):
        run_limited(_script, "512MiB", **how)
    run_limited(_script, "512MiB", **how, rungs=[[1, 2]])
    events = read_events(tmp_path / "killed" / "journal.jsonl")
    sizes = [event.micro_batch_size for event in events if isinstance(event, StepEvent)]
    assert (sizes[0], sizes[-1]) == (BATCH, BATCH // 4)


def test_other_data_than_before_is_refused_with_the_reason(tmp_path: Path) -> None:
    _start(tmp_path / "killed", {"generator without a seed": [3]})
    how = {"folder": str(tmp_path / "killed"), "kinds": ["generator without a seed"]}
    with pytest.raises(ChildFailed):
        run_limited(_script, "512MiB", **how)
    with pytest.raises(ChildFailed, match="the first batch of training 1 is not the one of before"):
        run_limited(_script, "512MiB", **how)
