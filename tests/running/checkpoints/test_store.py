"""The newest sound checkpoint, how often checkpoints are written, and what a full disk does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memfit.running.checkpoints.store import CheckpointStore, Pace, Writer
from memfit.running.journal.events import CheckpointEvent
from memfit.running.journal.run_folder import JournalFile, read_events


def _put(store: CheckpointStore, training: int, step: int) -> None:
    store.put(training, step, {"step": step}, {"weights": np.full(4, step)}.items())


def test_the_newest_few_of_each_training_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, newest=2)
    for step in (9, 10, 100):
        _put(store, 1, step)
    _put(store, 12, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "training-1-step-10.checkpoint",
        "training-1-step-100.checkpoint",
        "training-12-step-5.checkpoint",
    ]
    found = store.newest_of(1)
    assert found is not None
    assert found[0]["step"] == 100
    assert store.newest_of(2) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_the_one_before_a_damaged_one_is_used(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        _put(store, 1, step)
    path = tmp_path / "training-1-step-2.checkpoint"
    whole = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        whole[30] ^= 4
        path.write_bytes(whole if damage == "flipped" else whole[:-1])
    found = store.newest_of(1)
    assert found is not None
    assert found[0]["step"] == 1
    assert found[1]["weights"].tolist() == [1, 1, 1, 1]


def test_a_training_that_is_over_has_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    _put(store, 1, 3)
    assert store.end_of(1) is None
    store.put(1, None, {"step": 4}, [])
    found = store.end_of(1)
    assert found is not None
    assert found[0] == {"step": 4}
    assert store.newest_of(1) is None


def test_what_a_kill_left_behind_goes(tmp_path: Path) -> None:
    (tmp_path / ".training-1-step-3.checkpoint.77").write_bytes(b"half")
    CheckpointStore(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_when_the_script_is_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    _put(store, 1, 3)
    store.put(2, None, {}, [])
    (tmp_path / "notes.txt").write_text("mine")
    store.empty()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


class _Values:
    """Arrays in place of a model's variables."""

    def __init__(self, count: int = 4) -> None:
        self._array = np.arange(count, dtype="float32")
        self.size_bytes = self._array.nbytes

    def values(self) -> Any:
        yield "variable/0", self._array


def test_checkpoints_cost_a_small_share_of_the_time() -> None:
    now = [100.0]
    pace = Pace(share=0.02, least_seconds=1.0, clock=lambda: now[0])
    assert pace.is_due()
    pace.count(0.5)
    now[0] += 24.9
    assert not pace.is_due()
    now[0] += 0.2
    assert pace.is_due()
    pace.count(0.001)
    now[0] += 0.9
    assert not pace.is_due()
    pace.ask()
    assert pace.is_due()


def test_ends_of_many_short_trainings_are_not_all_kept() -> None:
    now = [0.0]
    pace = Pace(share=0.02, clock=lambda: now[0])
    kept = 0
    for _ in range(100):
        now[0] += 1.0
        if pace.pays(0.1):
            pace.count(0.1)
            kept += 1
    assert 20 < kept < 40  # 2 s of 100, and one that is always allowed


def test_a_checkpoint_is_written_beside_the_training_and_said_in_the_journal(tmp_path: Path) -> None:
    store, journal = CheckpointStore(tmp_path / "checkpoints"), JournalFile(tmp_path / "journal.jsonl")
    writer = Writer(store, journal, print)
    writer.put(1, 7, {"step": 7}, {"more": np.ones(2)}, _Values())  # type: ignore[arg-type]
    writer.wait()
    assert writer.is_free
    found = store.newest_of(1)
    assert found is not None
    assert (found[0], sorted(found[1])) == ({"step": 7}, ["more", "variable/0"])
    (event,) = read_events(journal.path)
    assert isinstance(event, CheckpointEvent)
    assert (event.training, event.step) == (1, 7)
    assert event.bytes == (tmp_path / "checkpoints" / "training-1-step-7.checkpoint").stat().st_size


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import _Values
from memfit.running.journal.run_folder import JournalFile, read_events
from memfit.running.checkpoints.store import CheckpointStore
from memfit.running.checkpoints.store import Writer
folder = Path(sys.argv[1])
store, journal = CheckpointStore(folder / "checkpoints"), JournalFile(folder / "journal.jsonl")
told = []
writer = Writer(store, journal, told.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
for step in (1, 2):
    writer.put(1, step, {}, {}, _Values(10_000))
    writer.wait()
print(len(told), told[0])
print([event.kind for event in read_events(journal.path)], store.newest_of(1), writer.pace.is_due())
print(list(path.name for path in (folder / "checkpoints").iterdir()))
"""


def test_a_disk_without_room_costs_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [
        "1 No checkpoint could be written (File too large). Training goes on without.",
        "['no checkpoint', 'no checkpoint'] None False",
        "[]",
    ]
