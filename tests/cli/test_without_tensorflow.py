"""memfit in a real Python that has its dependencies and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement


def _needed(name: str, seen: set[str]) -> set[str]:
    """A distribution and everything that it requires without extras."""
    if name in seen:
        return seen
    seen.add(name)
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _needed(requirement.name, seen)
    return seen


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment without TensorFlow, made from links to what is here."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=False)
    packages = Path(
        sysconfig.get_path("purelib", vars={"base": os.fspath(folder), "platbase": os.fspath(folder)})
    )
    for name in _needed("memfit", set()):
        distribution = metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or () if ".." not in path.parts}:
            link = packages / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(distribution.locate_file(top))))
    import memfit

    (packages / "memfit.pth").write_text(str(Path(memfit.__file__).parent.parent))
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def _run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False)


def test_doctor_works_and_says_how_to_get_tensorflow(bare: Path) -> None:
    result = _run(bare, "-m", "memfit", "doctor", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    assert [package["version"] for package in found["packages"][1:]] == [None, None]
    assert found["devices"] == []
    assert found["allocator"] == "unknown without TensorFlow"
    assert found["budget"]["budget_bytes"] > 0
    assert "pip install 'memfit[cpu]'" in found["warnings"][-1]


def test_demo_needs_tensorflow_and_says_so_at_once(bare: Path) -> None:
    result = _run(bare, "-m", "memfit", "demo")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "TensorFlowMissing: TensorFlow is not installed in this Python.\n"
        "  memfit leaves the choice of the build to you: on a GPU, memfit[gpu] instead.\n"
        "  Try: pip install 'memfit[cpu]'\n"
    )


def test_estimate_says_so_before_it_imports_anything_of_the_user(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    result = _run(bare, "-m", "memfit", "estimate", f"{tmp_path}/train.py:model", "--batch", "8")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("TensorFlowMissing: TensorFlow is not installed")


@pytest.mark.parametrize("call", ["memfit.limit('1GiB')", "memfit.fit(None)"])
def test_the_library_says_so_too(bare: Path, call: str) -> None:
    result = _run(bare, "-c", f"import memfit; {call}")
    assert "memfit.errors.TensorFlowMissing: TensorFlow is not installed" in result.stderr


def test_a_version_that_is_too_old_is_refused(bare: Path, tmp_path: Path) -> None:
    for name, version in (("tensorflow_cpu", "2.10.1"), ("keras", "3.15.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from memfit.cli.main import run; "
    code += "sys.exit(run("
    demo = _run(bare, "-c", f"{code}['demo']))")
    assert demo.returncode == 1
    assert "UnsupportedVersion: this version of tensorflow is not supported." in demo.stderr
    assert "Expected: tensorflow >=2.18,<2.22\n  Received: tensorflow 2.10.1" in demo.stderr
    doctor = _run(bare, "-c", f"{code}['doctor', '--json']))")
    assert doctor.returncode == 0
    assert "tensorflow: version 2.10.1 is outside >=2.18,<2.22" in json.loads(doctor.stdout)["warnings"]
