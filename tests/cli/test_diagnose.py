"""`memfit diagnose` as people call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnosing.written_logs import ACTIVATIONS


def _diagnose(*arguments: str, log: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    command = [sys.executable, "-m", "memfit", "diagnose", *arguments]
    return subprocess.run(command, env=environment, input=log, capture_output=True, check=False)


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_standard_input(arguments: tuple[str, ...]) -> None:
    result = _diagnose(*arguments, log=ACTIVATIONS.encode())
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode().startswith("activations: the batch or its activations are too large\n")


def test_json_and_a_file(tmp_path: Path) -> None:
    log, output = tmp_path / "train.log", tmp_path / "diagnosis.json"
    log.write_text(ACTIVATIONS)
    result = _diagnose(str(log), "--json", "--output", str(output))
    found = json.loads(result.stdout)
    assert (result.returncode, found["kind"], found["schema"]) == (0, "diagnosis", 1)
    assert list(found) == [
        "schema", "kind", "cause", "also", "summary", "evidence", "error", "source", "advice", "left_out",
    ]  # fmt: skip
    assert (found["cause"], found["source"]) == ("activations", "train.py:17")
    assert set(found["evidence"][0]) == {"line", "text"}
    assert set(found["advice"][0]) == {"what", "saves_bytes", "paste"}
    assert json.loads(output.read_text()) == found


def test_what_is_no_matter_of_memory_is_an_answer_too() -> None:
    result = _diagnose(log=b"Done.\n")
    assert (result.returncode, result.stdout.split(b":")[0]) == (0, b"not_an_oom")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "train.log", "No such file or directory"), (tmp_path, "it is a folder")):
        result = _diagnose(str(path))
        assert (result.returncode, result.stdout) == (2, b"")
        assert result.stderr.decode().startswith(f"CannotRead: cannot read {path}: {reason}.\n")


@pytest.mark.parametrize("log", [b"", bytes(range(256)) * 50, b"\xff\xfe", b"x" * 3_000_000])
def test_bytes_that_are_no_log(log: bytes) -> None:
    result = _diagnose("--json", log=log)
    assert (result.returncode, result.stderr) == (0, b"")
    assert json.loads(result.stdout)["cause"] in ("unknown", "not_an_oom")
