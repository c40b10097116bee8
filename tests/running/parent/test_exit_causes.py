"""Why a process ended, from what is left of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.machine.out_of_memory import PHRASES
from memfit.running.journal.events import HostReading
from memfit.running.parent.exit_causes import Ending, LastTraining, explain, kernel_messages

GIB = 1 << 30


@pytest.mark.parametrize(
    ("ending", "cause", "says"),
    [
        (Ending(7, signal.SIGKILL, kills=1), "memory", "cgroup was full"),
        (
            Ending(7, signal.SIGKILL, kernel_says=["Out of memory: Killed process 7 (python3)"]),
            "memory",
            "the machine was out of memory",
        ),
        (
            Ending(7, signal.SIGKILL, kernel_says=["Out of memory: Killed process 77 (python3)"]),
            "unknown",
            "Nothing says",
        ),
        (Ending(7, signal.SIGKILL, host=HostReading(7 * GIB, GIB // 9, 8 * GIB)), "memory", "most likely"),
        (Ending(7, signal.SIGKILL, host=HostReading(2 * GIB, 5 * GIB, 8 * GIB)), "unknown", "Nothing says"),
        (
            Ending(
                7, signal.SIGABRT, said_last=["Epoch 1", "F0000 x.cc:5] Check failed: RESOURCE_EXHAUSTED"]
            ),
            "memory",
            "SIGABRT",
        ),
        (Ending(7, signal.SIGABRT, said_last=["F0000 x.cc:5] Check failed: 1 == 2"]), "unknown", "SIGABRT"),
        (Ending(7, signal.SIGSEGV, said_last=["Allocator (cpu) ran out of memory"]), "memory", "SIGSEGV"),
        (Ending(7, signal.SIGSEGV), "unknown", "SIGSEGV"),
        (Ending(7, signal.SIGTERM), "asked", "SIGTERM"),
        (Ending(7, 63), "unknown", "63"),
    ],
)
def test_memory_is_blamed_only_where_something_speaks_for_it(ending: Ending, cause: str, says: str) -> None:
    exit_cause = explain(ending)
    assert exit_cause.cause == cause
    assert says in exit_cause.words


def test_the_lines_that_tell_are_quoted() -> None:
    said = [
        "Epoch 1/3",
        "W0000 Allocator (cpu) ran out of memory trying to allocate 4MiB",
        "F0000 Check failed: ok",
    ]
    evidence = explain(Ending(7, signal.SIGABRT, said_last=said)).evidence
    assert evidence == (said[1], said[2])


def test_a_kernel_log_that_cannot_be_read_has_no_messages(tmp_path: Path) -> None:
    assert kernel_messages(tmp_path / "none") == []


def test_a_real_abort_is_a_crash() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; os.abort()"], capture_output=True, text=True, check=False
    )
    assert explain(Ending(1, -ended.returncode, said_last=ended.stderr.splitlines())).cause == "unknown"


@pytest.mark.parametrize(
    ("training", "maybe", "words"),
    [
        (None, False, ()),
        (LastTraining(100 << 20, 60 << 20, steps=5), False, ()),
        (LastTraining(100 << 20, 90 << 20, steps=5), True, ("its steps needed 90.0 MiB of 100.0 MiB",)),
        (
            LastTraining(100 << 20, steps=9, ooms=1),
            True,
            ("it had run out of 100.0 MiB before, in the same training",),
        ),
        (
            LastTraining(100 << 20),
            True,
            ("it was in the first step of a training, under a limit of 100.0 MiB",),
        ),
    ],
)
def test_crashes_near_the_limit_may_be_for_memory(
    training: LastTraining | None, maybe: bool, words: tuple[str, ...]
) -> None:
    exit_cause = explain(Ending(7, signal.SIGSEGV, training=training))
    assert (exit_cause.cause, exit_cause.may_be_memory, exit_cause.evidence) == ("unknown", maybe, words)
    assert not explain(Ending(7, signal.SIGFPE, training=training)).may_be_memory


def test_the_check_that_failed_is_said_and_not_its_stack() -> None:
    lines = [
        "F0000 bfc_allocator.cc:1] Check failed: h != kInvalidChunkHandle",
        "*** Check failure stack trace: ***",
    ]
    assert explain(Ending(7, signal.SIGABRT, said_last=lines)).evidence == (lines[0],)


@pytest.mark.parametrize(
    "phrase", [*PHRASES, "RESOURCE_EXHAUSTED", "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"]
)
def test_every_phrase_of_missing_memory_is_blamed_on_memory(phrase: str) -> None:
    line = f"E0000 x.cc:5] {phrase}: for a tensor"
    cause = explain(Ending(7, signal.SIGABRT, said_last=["Epoch 1", line]))
    assert (cause.cause, cause.evidence) == ("memory", (line,))


@pytest.mark.parametrize(
    "line",
    [
        "ResourceExhaustedError: /tmp/checkpoint; No space left on device",
        "RESOURCE_EXHAUSTED: /data/x.tfrecord; Too many open files",
        "RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
        "CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_another_resource_is_not_blamed_on_memory(line: str) -> None:
    assert explain(Ending(7, signal.SIGABRT, said_last=[line])).cause == "unknown"
