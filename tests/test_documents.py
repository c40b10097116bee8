"""Every command and every example in the documents is run."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from demo.test_main_job import DEMO
from diagnosing.written_logs import ACTIVATIONS
from limited import QUIET, run_limited

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, (found, text) in enumerate(BLOCK.findall(path.read_text()))
        if found == language
    ]


def _commands() -> list[str]:
    lines = [line for block in _blocks("sh") for line in block.values[0].splitlines() if line]
    return sorted(set(lines))


def test_only_languages_that_are_run_are_used() -> None:
    for path in DOCUMENTS:
        assert {language for language, _ in BLOCK.findall(path.read_text())} <= {"sh", "python"}


@pytest.mark.parametrize("command", [line for line in _commands() if line.startswith("make ")])
def test_make_targets_exist_and_do_what_is_said(command: str) -> None:
    """Run dry: `make test` is what runs this, and what `make demo` calls is run by the demo's own test."""
    result = subprocess.run(
        [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = {
        "make demo": "memfit demo",
        "make test": "pytest",
        "make check": "mypy",
        "make unit": "not real",
    }
    assert expected.get(command, "awk") in result.stdout


@pytest.mark.real
@pytest.mark.parametrize("command", [line for line in _commands() if line.startswith("memfit doctor")])
def test_doctor_commands(command: str) -> None:
    subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, check=True)


@pytest.mark.real
def test_runs_and_reports(tmp_path: Path) -> None:
    commands = [line for line in _commands() if line.startswith(("memfit run", "memfit report"))]
    environment = {**os.environ, **QUIET, "MEMFIT_HOME": str(tmp_path)}
    for command in sorted(commands, reverse=True):  # there is nothing to report before something has run
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    assert "state        done" in ended.stdout


@pytest.mark.real
def test_packs(tmp_path: Path) -> None:
    rows = []
    for number in range(4):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 200), (number, 0, 0)).save(path)
        rows.append(f"{number}.jpg,{number}\n")
    (tmp_path / "labels.csv").write_text("".join(rows))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["images"], file["labels"] = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
    commands = [line for line in _commands() if line.startswith("memfit pack")]
    for command in sorted(commands, key=lambda line: "--verify" in line):  # what has been packed before
        run_limited(_call, None, folder=str(tmp_path), arguments=command.split()[1:])


def test_diagnoses(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(ACTIVATIONS)
    for command in [line for line in _commands() if line.startswith("memfit diagnose")]:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "activations" in ended.stdout


@pytest.mark.parametrize("command", [line for line in _commands() if line.startswith("memfit lint")])
def test_lints(command: str) -> None:
    subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, check=True)


def _call(folder: str, arguments: list[str]) -> None:
    from memfit.cli.main import run

    os.chdir(folder)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):  # noqa: PTH123
        code = run(arguments)
    assert code == 0, arguments


def test_there_are_no_other_commands() -> None:
    known = ("make ", "memfit doctor", "memfit run", "memfit report", "memfit pack")
    known += ("memfit diagnose", "memfit lint")
    others = [line for line in _commands() if not line.startswith(known)]
    assert others == [" ".join(DEMO)]  # run by the demo's own test


@pytest.mark.real
@pytest.mark.parametrize("code", _blocks("python"))
def test_examples(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **QUIET}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_example_in_the_readme_has_ten_lines() -> None:
    (block,) = [
        text for language, text in BLOCK.findall((ROOT / "README.md").read_text()) if language == "python"
    ]
    assert len([line for line in block.splitlines() if line]) <= 10
