"""A journal read as a record, and shown."""

from __future__ import annotations

from pathlib import Path

from golden import check_golden, render
from memfit.core.records import Choice, Plan, SupervisedRun
from memfit.reports.run_text import live_line, show_supervised
from memfit.running.journal.run_folder import Job, RunFolder
from memfit.running.journal.summary import read_summary

GOLDEN = Path(__file__).parent / "golden"
MIB = 1 << 20
PLAN = Plan(
    400 * MIB,
    64,
    False,
    Choice(16, 4, None, "float32", False, 310 * MIB, 350 * MIB, 1.05, True, ()),
)
HOST = {"process_bytes": 900 * MIB, "available_bytes": 100 * MIB, "total_bytes": 2048 * MIB}


def _lines() -> list[tuple[str, dict[str, object]]]:
    step = {"micro_batch_size": 16, "device_bytes": 9 * MIB, "peak_bytes": 320 * MIB, **HOST}
    return [
        ("start", {"attempt": 1, "parent": 1}),
        ("memory", HOST),
        ("training", {"training": 1, "epochs": 0, "batches": 0, "steps": 0}),
        ("plan", {"training": 1, "plan": PLAN.to_dict()}),
        ("checkpoint", {"training": 1, "step": 1, "bytes": 100, "seconds": 0.2}),
        ("step", {"training": 1, "epoch": 0, "batch": 7, "step": 7, "loss": 0.5, **step}),
        ("oom", {"training": 1, "step": 7}),
        ("scarce", HOST),
        ("died", {"code": 137, "cause": "memory", "words": "The kernel killed it.", "evidence": ["full"]}),
        ("step down", {"training": 1, "rung": 1}),
        ("start", {"attempt": 2, "parent": 1}),
        ("training", {"training": 1, "epochs": 0, "batches": 1, "steps": 1}),
        ("step", {"training": 1, "epoch": 1, "batch": 2, "step": 12, "loss": 0.25, **step}),
    ]


def _summary(tmp_path: Path, *more: tuple[str, dict[str, object]]) -> SupervisedRun:
    import json

    folder = RunFolder(tmp_path / "20261117-120000-77")
    folder.path.mkdir()
    folder.write_job(Job("train.py", ("--epochs", "3"), budget_bytes=400 * MIB))
    lines = [
        {"event": event, "at": 1000.0 + 5 * number, "process": 7, **facts}
        for number, (event, facts) in enumerate([*_lines(), *more])
    ]
    folder.journal.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "ste')
    return read_summary(folder)


def test_a_run_is_told_while_it_runs(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    assert summary.code is None
    assert live_line(summary) == (
        "training 1, epoch 2, step 12, loss 0.25, micro-batch 16, peak 320.0 MiB of 400.0 MiB, "
        "out of memory once"
    )
    assert SupervisedRun.from_json(summary.to_json()) == summary


def test_a_run_that_is_over_is_told_in_full(tmp_path: Path) -> None:
    summary = _summary(tmp_path, ("trained", {"training": 1, "steps": 30}), ("over", {"code": 0}))
    assert (summary.code, summary.is_over, summary.seconds) == (0, True, 70.0)
    assert [attempt.cause for attempt in summary.attempts] == ["memory", None]
    check_golden(GOLDEN / "supervised.txt", render(show_supervised(summary)))


def test_a_run_that_was_left_can_be_resumed(tmp_path: Path) -> None:
    died = {"code": 134, "cause": "unknown", "words": "It crashed: SIGABRT.", "evidence": []}
    summary = _summary(tmp_path, ("died", died), ("end", {"code": 134}))
    assert not summary.is_over
    assert "ended with code 134; it can be resumed" in render(show_supervised(summary))


def test_data_that_take_much_are_noted_once(tmp_path: Path) -> None:
    warning = "3. shuffle: 9.0 GiB. A {large} buffer.\n  Try: .shuffle(10)"
    data = ("data", {"training": 1, "argument": "x", "warnings": [warning]})
    nothing = ("data", {"training": 2, "reason": "TypeError", "warnings": []})
    words = "The data of training 1 take much memory: 3. shuffle: 9.0 GiB. A {large} buffer."
    assert [note for note in _summary(tmp_path, data, data, nothing).notes if "data" in note] == [words]
