"""Journal events: each kind has its line, byte for byte, and old journals can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memfit.running.journal import events
from memfit.running.journal.events import DeviceReading, Entry, Event, HostReading, from_line, to_line
from memfit.running.journal.run_folder import RunFolder, read_entries
from memfit.running.journal.summary import read_summary

HOST = HostReading(690323456, 19174227968, 25276518400)
HOST_TEXT = '"process_bytes": 690323456, "available_bytes": 19174227968, "total_bytes": 25276518400'
OOM = {"schema": 1, "kind": "survived_oom", "step": 7, "phase": "gradients", "micro_batch_size": 64}

# Each event, and its line behind the event, the time and the process.
LINES: list[tuple[Event, str, str]] = [
    (events.StartEvent(attempt=1, parent=12978), "start", '"attempt": 1, "parent": 12978'),
    (events.EndEvent(0), "end", '"code": 0'),
    (events.ExitEvent(3), "over", '"code": 3'),
    (
        events.KillEvent(134, "unknown", "It crashed: SIGABRT.", ("Check failed",)),
        "died",
        '"code": 134, "cause": "unknown", "words": "It crashed: SIGABRT.", "evidence": ["Check failed"]',
    ),
    (events.StepDownEvent(1, rung=2), "step down", '"training": 1, "rung": 2'),
    (events.ShortfallEvent(True), "does not fit", '"onednn": true'),
    (events.KernelsEvent(False), "kernels", '"onednn": false'),
    (events.LimitEvent(41943040), "limit", '"limit_bytes": 41943040'),
    (events.UnguardedEvent("a strategy"), "unguarded", '"reason": "a strategy"'),
    (
        events.TrainingStartEvent(2, epochs=1, batches=3, steps=7),
        "training",
        '"training": 2, "epochs": 1, "batches": 3, "steps": 7',
    ),
    (
        events.PlanEvent(1, {"schema": 1, "kind": "plan"}),
        "plan",
        '"training": 1, "plan": {"schema": 1, "kind": "plan"}',
    ),
    (
        events.DataEvent(2, argument="x", check={"schema": 1}, available_bytes=9, warnings=("large",)),
        "data",
        '"training": 2, "argument": "x", "check": {"schema": 1}, "available_bytes": 9, "warnings": ["large"]',
    ),
    (
        events.DataEvent(2, reason="TypeError: no"),
        "data",
        '"training": 2, "reason": "TypeError: no", "warnings": []',
    ),
    (
        events.StepEvent(1, 0, 1, 1, 0.5, 64, DeviceReading(659200, 18172928), HOST),
        "step",
        '"training": 1, "epoch": 0, "batch": 1, "step": 1, "loss": 0.5, "micro_batch_size": 64, '
        f'"device_bytes": 659200, "peak_bytes": 18172928, {HOST_TEXT}',
    ),
    (
        events.StepEvent(1, 0, 1, 1, host=HOST),
        "step",
        '"training": 1, "epoch": 0, "batch": 1, "step": 1, "loss": null, "micro_batch_size": null, '
        f"{HOST_TEXT}",
    ),
    (
        events.OutOfMemoryEvent(1, OOM),
        "oom",
        '"training": 1, "schema": 1, "kind": "survived_oom", "step": 7, "phase": "gradients", '
        '"micro_batch_size": 64',
    ),
    (events.TrainingEndEvent(1, 8), "trained", '"training": 1, "steps": 8'),
    (events.TrainingRestoreEvent(1, 8), "restored", '"training": 1, "steps": 8'),
    (
        events.CheckpointEvent(1, None, bytes=268371, seconds=0.0558),
        "checkpoint",
        '"training": 1, "step": null, "bytes": 268371, "seconds": 0.0558',
    ),
    (events.CheckpointFailureEvent("File too large"), "no checkpoint", '"reason": "File too large"'),
    (events.MemoryEvent(HOST), "memory", HOST_TEXT),
    (events.ScarceMemoryEvent(HOST), "scarce", HOST_TEXT),
]


@pytest.mark.parametrize(("event", "kind", "facts"), LINES)
def test_an_event_has_its_line_and_comes_back(event: Event, kind: str, facts: str) -> None:
    entry = Entry(event, at=1794991706.124, process=12988)
    line = f'{{"event": "{kind}", "at": 1794991706.124, "process": 12988, {facts}}}'
    assert to_line(entry) == line
    assert from_line(line) == entry


def test_every_kind_is_among_the_lines() -> None:
    assert {type(event) for event, _, _ in LINES} == set(events.EVENTS)
    written = {kind for kind in Event.__subclasses__() if kind is not events.UnknownEvent}
    assert written == set(events.EVENTS)


@pytest.mark.parametrize("kind", events.EVENTS)
def test_a_line_may_lack_every_field_and_have_others(kind: type[Event]) -> None:
    entry = from_line(json.dumps({"event": kind.kind}))
    assert entry == Entry(kind())
    if kind is not events.OutOfMemoryEvent:  # whose record takes all that is there
        assert from_line(json.dumps({"event": kind.kind, "colour": "red"})) == entry


def test_a_line_of_another_kind_is_kept_as_it_is() -> None:
    line = '{"event": "eclipse", "at": 5.0, "process": 7, "of": "the moon"}'
    entry = from_line(line)
    assert entry == Entry(events.UnknownEvent("eclipse", {"of": "the moon"}), 5.0, 7)
    assert to_line(entry) == line


@pytest.mark.parametrize("text", ['{"event": "ste', "7", "[]", "{}", ""])
def test_other_text_is_no_line(text: str) -> None:
    assert from_line(text) is None


OLD = """\
{"event": "start", "at": 1794991706.124, "process": 12978, "attempt": 1, "parent": 12978}
{"event": "memory", "at": 1794991707.055, "process": 12988, "process_bytes": 353427456, "available_bytes": \
19142021120, "total_bytes": 25276518400}
{"event": "limit", "at": 1794991708.268, "process": 12988, "limit_bytes": 41943040}
{"event": "training", "at": 1794991708.828, "process": 12988, "training": 1, "epochs": 0, "batches": 0, \
"steps": 0}
{"event": "step", "at": 1794991710.341, "process": 12988, "training": 1, "epoch": 0, "batch": 1, "step": 1, \
"loss": 0.5992832183837891, "micro_batch_size": 64, "device_bytes": 659200, "peak_bytes": 18172928, \
"process_bytes": 690323456, "available_bytes": 19174227968, "total_bytes": 25276518400}
{"event": "checkpoint", "at": 1794991710.366, "process": 12988, "training": 1, "step": 1, "bytes": 273630, \
"seconds": 0.0102}
{"event": "checkpoint", "at": 1794991711.089, "process": 12988, "training": 1, "step": null, \
"bytes": 268371, "seconds": 0.0558}
{"event": "trained", "at": 1794991711.089, "process": 12988, "training": 1, "steps": 8}
{"event": "over", "at": 1794991713.729, "process": 12978, "code": 0}
{"event": "end", "at": 1794991713.733, "process": 12978, "code": 0}
"""


def test_a_journal_of_before_is_read_and_would_be_written_the_same(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.write_text(OLD)
    entries = list(read_entries(folder.journal))
    assert "".join(f"{to_line(entry)}\n" for entry in entries) == OLD
    assert [type(entry.event) for entry in entries if isinstance(entry.event, events.UnknownEvent)] == []
    summary = read_summary(folder)
    assert (summary.code, summary.is_over, summary.seconds) == (0, True, 7.609)
    assert (summary.checkpoints, summary.checkpoint_seconds) == (2, 0.066)
    assert summary.process_bytes == 690323456
    (training,) = summary.trainings
    assert (training.steps, training.is_over, training.peak_bytes) == (8, True, 18172928)
