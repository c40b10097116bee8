"""The command line as people call it: in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden

GOLDEN = Path(__file__).parent / "golden"


def memfit(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-m", "memfit", *arguments],
        env=environment, capture_output=True, text=True, check=False, **options,
    )  # type: ignore[call-overload]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("demo",),
        ("doctor",),
        ("estimate",),
        ("plan",),
        ("run",),
        ("report",),
        ("diagnose",),
        ("lint",),
        ("pack",),
        ("completion",),
    ],
)
def test_help(command: tuple[str, ...]) -> None:
    result = memfit(*command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        "xample: memfit" in result.stdout or "Start here: memfit" in result.stdout or "eval" in result.stdout
    )
    check_golden(GOLDEN / f"help_{'_'.join(command) or 'memfit'}.txt", result.stdout)


def test_version() -> None:
    from memfit import __version__

    assert memfit("--version").stdout == f"memfit, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["demo", "--budget", "8gigs"], 2, "InvalidSize: expected a number of bytes or a size with a unit.\n"
         "  Received: --budget 8gigs (str)\n  Try: --budget 8GiB\n"),
        (["demo", "--budget", "0"], 2, "InvalidSize: expected a size of at least 1.0 MiB.\n"
         "  Received: --budget 0 (str)\n"),
        (["demo", "--budget", "1"], 2, "Received: --budget 1 (str)"),
        (["demo", "--budget", "-1"], 2, "Received: --budget -1 (str)"),
        (["demo", "--budget", "9PiB"], 2, "LargerThanMachine: budget of 9437184.0 GiB is larger than"),
        (["demo", "--epochs", "0"], 2, "--epochs"),
        (["demo", "--output", "/proc/out.json"], 1, "CannotWrite: cannot write /proc/out.json"),
        (["doctor", "--output", "no/such/folder/x"], 1, "CannotWrite: cannot write no/such/folder/x"),
        (["completion", "tcsh"], 2, "tcsh"),
    ],
)  # fmt: skip
def test_bad_input(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = memfit(*arguments, cwd=tmp_path)
    assert message in result.stderr
    assert (result.returncode, result.stdout) == (code, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    result = memfit("completion", shell)
    assert result.returncode == 0
    assert "_MEMFIT_COMPLETE" in result.stdout
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(result.stdout)
        subprocess.run([shell, "-n", os.fspath(script)], check=True)


def test_completion_completes() -> None:
    environment = {
        **os.environ,
        "_MEMFIT_COMPLETE": "bash_complete",
        "COMP_WORDS": "memfit do",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(
        [sys.executable, "-m", "memfit"], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "plain,doctor\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full exists on Linux only")
def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run(
            [sys.executable, "-m", "memfit", "completion", "bash"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("CannotWrite: cannot write standard output: No space left on device.")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"'{sys.executable}' -m memfit completion bash; echo $? >&2"
    result = subprocess.run(["bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=True)
    assert result.stderr in ("0\n", "1\n")  # and not a word
