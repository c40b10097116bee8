"""How often checkpoints are written, and what a full disk does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memfit.supervision.journals import JournalFile, read_lines
from memfit.supervision.shelves import Shelf
from memfit.supervision.writers import Pace, Writer


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
    shelf, journal = Shelf(tmp_path / "checkpoints"), JournalFile(tmp_path / "journal.jsonl")
    writer = Writer(shelf, journal, print)
    writer.put(1, 7, {"step": 7}, {"more": np.ones(2)}, _Values())  # type: ignore[arg-type]
    writer.wait()
    assert writer.is_free
    found = shelf.newest_of(1)
    assert found is not None
    assert (found[0], sorted(found[1])) == ({"step": 7}, ["more", "variable/0"])
    (line,) = read_lines(journal.path)
    assert (line["event"], line["training"], line["step"]) == ("checkpoint", 1, 7)
    assert line["bytes"] == (tmp_path / "checkpoints" / "training-1-step-7.checkpoint").stat().st_size


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_writers import _Values
from memfit.supervision.journals import JournalFile, read_lines
from memfit.supervision.shelves import Shelf
from memfit.supervision.writers import Writer
folder = Path(sys.argv[1])
shelf, journal = Shelf(folder / "checkpoints"), JournalFile(folder / "journal.jsonl")
told = []
writer = Writer(shelf, journal, told.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
for step in (1, 2):
    writer.put(1, step, {}, {}, _Values(10_000))
    writer.wait()
print(len(told), told[0])
print([line["event"] for line in read_lines(journal.path)], shelf.newest_of(1), writer.pace.is_due())
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
