"""What is done when the host's memory runs low."""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.running.checkpoints.store import ChildContext
from memfit.running.child.monitor import Monitor
from memfit.running.journal.events import HostReading
from memfit.running.journal.run_folder import Job, read_events

GIB = 1 << 30


def _reading(available: float) -> HostReading:
    return HostReading(GIB, int(available * GIB), 16 * GIB)


def test_it_makes_room_and_asks_for_a_checkpoint_once_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = ChildContext.of(
        Job("script.py", folder=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    )
    context.writer.pace.wait(1e9)
    monitor = Monitor(context)
    monitor.look(_reading(8), 0.0)
    assert not context.writer.pace.is_due()
    monitor.look(_reading(0.5), 1.0)
    assert context.writer.pace.is_due()
    monitor.look(_reading(0.4), 2.0)
    monitor.look(_reading(1), 3.0)  # not yet plenty
    monitor.look(_reading(0.4), 4.0)
    said = capsys.readouterr().err
    assert said.count("memfit: Only 512.0 MiB of 16.0 GiB of the host's memory are left.") == 1
    monitor.look(_reading(4), 5.0)
    monitor.look(_reading(0.25), 6.0)
    assert "Only 256.0 MiB" in capsys.readouterr().err
    events = [event.kind for event in read_events(tmp_path / "journal.jsonl")]
    assert events.count("scarce") == 2
    assert events.count("memory") >= 6  # a line each time while little is left
