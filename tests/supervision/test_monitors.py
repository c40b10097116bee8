"""What is done when the host's memory runs low."""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.supervision.desks import Desk
from memfit.supervision.jobs import Job
from memfit.supervision.journals import read_lines
from memfit.supervision.monitors import Monitor

GIB = 1 << 30


def _reading(available: float) -> dict[str, int]:
    return {"process_bytes": GIB, "available_bytes": int(available * GIB), "total_bytes": 16 * GIB}


def test_it_makes_room_and_asks_for_a_checkpoint_once_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk.of(Job("script.py", folder=str(tmp_path), checkpoints=str(tmp_path / "checkpoints")))
    desk.writer.pace.wait(1e9)
    monitor = Monitor(desk)
    monitor.look(_reading(8), 0.0)
    assert not desk.writer.pace.is_due()
    monitor.look(_reading(0.5), 1.0)
    assert desk.writer.pace.is_due()
    monitor.look(_reading(0.4), 2.0)
    monitor.look(_reading(1), 3.0)  # not yet plenty
    monitor.look(_reading(0.4), 4.0)
    said = capsys.readouterr().err
    assert said.count("memfit: Only 512.0 MiB of 16.0 GiB of the host's memory are left.") == 1
    monitor.look(_reading(4), 5.0)
    monitor.look(_reading(0.25), 6.0)
    assert "Only 256.0 MiB" in capsys.readouterr().err
    events = [line["event"] for line in read_lines(tmp_path / "journal.jsonl")]
    assert events.count("scarce") == 2
    assert events.count("memory") >= 6  # a line each time while little is left
