"""Output files: written whole or not at all, refused before the work begins."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memfit.errors import CannotWrite
from memfit.reports.files import output_file


def test_writes_and_replaces_with_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with output_file(path) as write:
        assert path.read_text() == "old"
        write("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "ordinary").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


def test_work_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), output_file(path):
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["no/such/folder/out.json", ".", "file/out.json"])
def test_an_impossible_place_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match="Nothing was written"), output_file(tmp_path / name):
        pytest.fail("the work began")


def test_a_folder_without_permission_is_refused_before_the_work() -> None:
    place = Path("/proc/memfit-output.json")  # nobody may create files there, root included
    with pytest.raises(CannotWrite, match="cannot write /proc"), output_file(place):
        pytest.fail("the work began")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", os.fspath(folder)]
    if os.name != "posix" or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", os.fspath(folder)], check=True)


def test_a_full_disk_leaves_nothing_half_written(full_disk: Path) -> None:
    path = full_disk / "out.json"
    path.write_text("old")
    with pytest.raises(CannotWrite, match="No space left on device"), output_file(path) as write:
        write("x" * 200_000)
    assert path.read_text() == "old"
    assert list(full_disk.iterdir()) == [path]
