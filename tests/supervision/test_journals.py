"""Journals: whole lines, also after a kill."""

from __future__ import annotations

from pathlib import Path

from memfit.supervision.journals import JournalFile, read_lines


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal.jsonl")
    journal.write("step", step=1, loss=0.5)
    assert [line["step"] for line in read_lines(journal.path)] == [1]
    journal.write("step", step=2, loss=float("nan"))
    lines = list(read_lines(journal.path))
    assert [line["event"] for line in lines] == ["step", "step"]
    assert lines[1]["loss"] != lines[1]["loss"]


def test_a_torn_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    JournalFile(path).write("begin")
    with path.open("ab") as file:
        file.write(b'{"event": "st')
    assert [line["event"] for line in read_lines(path)] == ["begin"]
    JournalFile(path).write("resume")
    assert [line["event"] for line in read_lines(path)] == ["begin", "resume"]


def test_no_journal_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none")) == []
