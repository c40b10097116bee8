"""Journals: whole lines, also after a kill."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from memfit.running.journal.events import CheckpointFailureEvent, ExitEvent, StartEvent, StepEvent
from memfit.running.journal.run_folder import JournalFile, read_entries, read_events


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal.jsonl")
    journal.write(StepEvent(step=1, loss=0.5))
    assert list(read_events(journal.path)) == [StepEvent(step=1, loss=0.5)]
    journal.write(StepEvent(step=2, loss=float("nan")))
    first, second = read_events(journal.path)
    assert first == StepEvent(step=1, loss=0.5)
    assert isinstance(second, StepEvent)
    assert second.loss != second.loss


def test_each_line_has_its_time_and_its_process(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal.jsonl")
    journal.write(CheckpointFailureEvent("No space left on device"))
    (entry,) = read_entries(journal.path)
    assert entry.process == os.getpid()
    assert abs(entry.at - time.time()) < 60
    assert list(json.loads(journal.path.read_text())) == ["event", "at", "process", "reason"]


def test_a_torn_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    JournalFile(path).write(StartEvent(1, 7))
    with path.open("ab") as file:
        file.write(b'{"event": "st')
    assert list(read_events(path)) == [StartEvent(1, 7)]
    JournalFile(path).write(ExitEvent(0))
    assert list(read_events(path)) == [StartEvent(1, 7), ExitEvent(0)]


def test_no_journal_has_no_lines(tmp_path: Path) -> None:
    assert list(read_entries(tmp_path / "none")) == []
