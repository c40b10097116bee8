"""`memfit lint` as people call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.core.records import Lint, LintRule

BAD = "import keras\noptimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)\nm.compile(optimizer)\n"


def _lint(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "memfit", "lint", *arguments],
        cwd=folder, env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
        input=given, capture_output=True, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text("import keras\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    return tmp_path


def test_exit_codes(folder: Path) -> None:
    assert _lint(folder, "good.py").returncode == 0
    assert _lint(folder, "bad.py").returncode == 1
    assert _lint(folder, "bad.py", "--severity", "warning").returncode == 0
    assert _lint(folder, "broken.py").returncode == 1
    assert _lint(folder).returncode == 2
    assert _lint(folder, "bad.py", "--json", "--format", "sarif").returncode == 2
    assert _lint(folder, "bad.py", "--select", "MF1").returncode == 2


def test_text(folder: Path) -> None:
    result = _lint(folder, ".")
    assert result.stderr == b""
    text = result.stdout.decode()
    assert "2:35 MF027 note" in text
    assert "broken.py: not looked at: line 1: invalid syntax" in text
    assert "1 note in 2 files; 1 thing could not be looked at." in text


def test_json(folder: Path) -> None:
    result = _lint(folder, ".", "--json", "--output", "found.json")
    found = Lint.from_json(result.stdout.decode())
    assert Lint.from_json((folder / "found.json").read_text()) == found
    assert [(finding.path, finding.line) for finding in found.findings] == [("bad.py", 2)]
    assert json.loads(result.stdout)["kind"] == "lint"


def test_other_programs(folder: Path) -> None:
    command = _lint(folder, "bad.py", "--format", "github").stdout.decode()
    assert command.startswith("::notice file=bad.py,line=2,col=35,")
    assert command.count("\n") == 1
    assert _lint(folder, "good.py", "--format", "github").stdout == b""
    (run,) = json.loads(_lint(folder, "bad.py", "--format", "sarif").stdout)["runs"]
    assert len(run["tool"]["driver"]["rules"]) == 28


def test_standard_input(folder: Path) -> None:
    result = _lint(folder, "-", given=BAD.encode())
    assert result.returncode == 1
    assert result.stdout.startswith(b"<stdin>\n")


def test_explanations(folder: Path) -> None:
    text = _lint(folder, "--explain", "mf011").stdout.decode()
    assert text.startswith("### MF011 model-in-a-loop\n")
    assert "14 to 17 MiB" in text
    rule = LintRule.from_json(_lint(folder, "--explain", "MF011", "--json").stdout.decode())
    assert rule.severity == "warning"


def test_what_is_not_there(folder: Path) -> None:
    result = _lint(folder, "bat.py")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.decode() == (
        "SourceNotFound: bat.py does not exist.\n"
        "  Expected: a Python file, a notebook, a folder, or - for standard input\n"
        "  Try: memfit lint bad.py\n"
    )


def test_names_of_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.py"
    try:
        with open(path, "w") as file:  # noqa: PTH123
            file.write(BAD)
    except OSError:
        pytest.skip("this file system takes no such names")
    for form in ("text", "github", "sarif"):
        result = _lint(tmp_path, ".", "--format", form)
        assert (result.returncode, result.stderr) == (1, b"")


def test_tensorflow_is_not_loaded(folder: Path) -> None:
    code = "import sys; from memfit.cli.main import run; run(['lint', 'bad.py', '--json']); "
    code += "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)
