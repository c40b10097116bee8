"""Scripts that are killed, and when they are started again; without TensorFlow."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memfit.running.journal.events import ExitEvent
from memfit.running.journal.run_folder import Job, JournalFile, find_run, new_run, run_to_resume
from memfit.running.journal.summary import read_summary
from memfit.running.parent.supervisor import Supervisor

# A script that says in the journal that it trains, and dies in each attempt one step later.
DIES = """
import os, sys
from pathlib import Path
from memfit.running.journal.events import LimitEvent, TrainingStartEvent
from memfit.running.journal.run_folder import JournalFile
folder, kills, says, steps = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
count = folder / "count"
before = int(count.read_text()) if count.exists() else 0
count.write_text(str(before + 1))
step = before if steps == "further" else 3
journal = JournalFile(folder / "journal.jsonl")
if says == "limited":
    journal.write(LimitEvent(100 << 20))
journal.write(TrainingStartEvent(training=1, steps=step))
if before < kills:
    print(says, file=sys.stderr, flush=True)
    os.abort()
"""
OUT = "E0000 bfc_allocator.cc Check failed: ran out of memory"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs the script under a supervisor: its code, what was said, and the folder."""
    monkeypatch.setenv("MEMFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(DIES)

    def start(kills: int, says: str = "", steps: str = "further", most: int = 10) -> Any:
        folder, told = new_run(), list[str]()
        folder.checkpoints.mkdir()
        arguments = (str(folder.path), str(kills), says, steps)
        job = Job(str(script), arguments, folder=str(folder.path), checkpoints=str(folder.checkpoints))
        folder.write_job(job)
        code = Supervisor(job, folder, most_restarts=most, tell=told.append).run(os.environ)
        return code, told, folder

    return start


def test_what_gets_further_each_time_is_started_again(run: Any) -> None:
    code, told, folder = run(4)
    assert code == 0
    assert told.count("It crashed: SIGABRT.") == 4
    summary = read_summary(folder)
    assert [attempt.code for attempt in summary.attempts] == [134, 134, 134, 134, 0]
    assert summary.is_over
    assert summary.trainings[0].steps == 4


def test_what_crashes_at_the_same_step_is_not_tried_a_third_time(run: Any) -> None:
    code, told, _ = run(4, steps="same")
    assert code == 134
    assert told[-1] == "It is not started again: it has ended like this at step 4 before."
    assert sum(text.startswith("Starting") for text in told) == 1


def test_for_memory_it_steps_down_the_ladder_each_time(run: Any) -> None:
    code, told, folder = run(3, OUT, "same")
    assert code == 0
    assert told[:2] == ["It ended by SIGABRT after it had run out of memory.", OUT]
    assert read_summary(folder).notes[-1] == "Training 1 went on in smaller steps (rung 3 of its ladder)."


def test_a_second_crash_in_the_first_step_under_a_limit_is_taken_for_memory(run: Any) -> None:
    code, told, folder = run(3, "limited", "same")
    assert code == 0
    assert told[0] == "It crashed: SIGABRT. Memory may be the reason."
    assert read_summary(folder).notes[-1] == "Training 1 went on in smaller steps (rung 2 of its ladder)."


def test_no_more_often_than_asked_for(run: Any) -> None:
    code, told, folder = run(9, OUT, most=2)
    assert code == 134
    assert told[-1] == "It is not started again: 2 restarts are the most that were asked for."
    assert not read_summary(folder).is_over
    assert not folder.is_running()


def test_checkpoints_go_when_it_is_done_and_stay_when_it_is_not(run: Any) -> None:
    _, _, folder = run(0)
    kept = folder.checkpoints / "training-1-step-1.checkpoint"
    kept.write_bytes(b"x")
    job = folder.job()
    assert job is not None
    told: list[str] = []
    failing = Job("missing.py", folder=job.folder, checkpoints=job.checkpoints)
    assert Supervisor(failing, folder, most_restarts=0, tell=told.append).run(os.environ) == 1
    assert kept.exists()
    assert told == ["To go on from the last checkpoint: memfit run --resume missing.py"]
    assert Supervisor(job, folder, most_restarts=0, tell=told.append).run(os.environ) == 0
    assert not kept.exists()


def test_the_last_run_of_a_script_that_was_not_over_is_resumed(run: Any) -> None:
    from memfit.core.errors import RunNotFound

    _, _, ended = run(9, OUT, most=0)
    job = ended.job()
    assert job is not None
    assert run_to_resume(job).path == ended.path
    assert find_run("last").path == ended.path
    assert find_run(ended.name).path == ended.path
    with pytest.raises(RunNotFound, match=r"no run of other\.py"):
        run_to_resume(Job("other.py"))
    JournalFile(ended.journal).write(ExitEvent(0))
    with pytest.raises(RunNotFound):
        run_to_resume(job)
    with pytest.raises(RunNotFound, match="memfit report last"):
        find_run("nobody")


# A script whose training fits with the other kernels alone, raised as `memfit.fit` would raise it.
FITS_WITHOUT = """
import os, sys
from memfit.core.errors import DoesNotFit
if os.environ.get("TF_ENABLE_ONEDNN_OPTS") != sys.argv[1]:
    raise DoesNotFit("too small.", suggestion="more", limit_bytes=1, onednn=sys.argv[1] == "1")
"""


@pytest.mark.parametrize("world", ["0", "1"])
def test_a_training_that_fits_with_other_kernels_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    monkeypatch.setenv("MEMFIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(FITS_WITHOUT)
    folder, told = new_run(), list[str]()
    folder.checkpoints.mkdir()
    job = Job(
        str(script),
        (world,),
        folder=str(folder.path),
        checkpoints=str(folder.checkpoints),
        is_guarded=True,
    )
    folder.write_job(job)

    def run(**environment: str) -> int:
        given = {**os.environ, **environment}
        return Supervisor(job, folder, most_restarts=1, tell=told.append).run(given)

    chosen = {"TF_ENABLE_ONEDNN_OPTS": str(1 - int(world))}
    assert run(**chosen) == 1, "the user has chosen"
    assert told == []
    assert run() == 0
    how = "with" if world == "1" else "without"
    assert told == [
        f"It does not fit as it is: going on {how} oneDNN. "
        "Weights are equal within float32 rounding, not bit for bit."
    ]
    assert read_summary(folder).notes == (f"The script went on {how} oneDNN: equal within float32 rounding.",)
    assert run() == 0, "when it is resumed, it begins with them"
    assert len(told) == 1


def test_a_disk_without_room_is_said_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('began')")
    command = [sys.executable, "-m", "memfit", "run", "--budget", "1GiB", "train.py"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MEMFIT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # as on a full disk
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[0].startswith(f"CannotWrite: cannot write {tmp_path / 'home'}")
