"""Output files: written whole or not at all, refused before the work begins."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memfit.core.errors import CannotWrite
from memfit.core.output_file import output_file


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


def test_a_link_is_followed_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with output_file(link) as write:
        write("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", os.fspath(pipe)], stdout=subprocess.PIPE)
    with output_file(pipe) as write:
        write("text")
    assert reader.communicate() == (b"text", None)
    assert pipe.is_fifo()


def test_a_read_only_file_is_refused_and_stays() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "out.json"
        path.write_text("old")
        path.chmod(0o444)
        if user == 0:
            os.seteuid(65534)  # root may write everything
        try:
            with pytest.raises(CannotWrite, match="it is read-only"), output_file(path):
                pytest.fail("the work began")
        finally:
            os.seteuid(user)
        assert path.read_text() == "old"


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
