"""`memfit pack` as people call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from limited import QUIET, run_limited
from memfit.data.manifest import Pack, Verification


def memfit(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memfit", "pack", *map(str, arguments)],
        env={**os.environ, **QUIET}, capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(60):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["photos"], 2, "Give SOURCE and DEST, or --verify and DEST alone."),
        (["photos", "dest", "--verify"], 2, "Give SOURCE and DEST, or --verify and DEST alone."),
        (["photos", "dest", "--size", "160"], 2, "'160' is not HEIGHTxWIDTH in pixels, as 160x160."),
        (["photos", "dest", "--size", "0x7"], 2, "'0x7' is not HEIGHTxWIDTH"),
        (["photos", "dest", "--shards", "0"], 2, "--shards"),
        (["photos", "dest", "--shards", "2", "--shard-size", "1MiB"], 2, "one of shard_size and shards"),
        (["photos", "dest", "--shard-size", "1gigs"], 2, "InvalidSize: "),
        (["photos", "dest", "--on-error", "ignore"], 2, "--on-error"),
        (["nowhere", "dest"], 1, "NoData: there is nothing to stream in nowhere."),
        (["photos", "photos/a/dest"], 2, "InvalidStream: photos/a/dest is inside of photos."),
        (["photos", "photos/a/00.jpg"], 2, "InvalidStream: photos/a/00.jpg is not a folder."),
    ],
)
def test_bad_input(arguments: list[str], code: int, message: str, photos: Path) -> None:
    before = sorted(photos.parent.rglob("*"))
    result = memfit(*arguments, cwd=photos.parent)
    assert message in result.stderr
    assert (result.returncode, result.stdout) == (code, "")
    assert sorted(photos.parent.rglob("*")) == before


@pytest.mark.real
def test_packing_and_verifying(photos: Path) -> None:
    dest = photos.parent / "dest"
    (photos / "a" / "bad.jpg").write_bytes(b"bad")
    made = memfit(photos, dest, "--labels", "folders", "--on-error", "skip", "--json", "--workers", "1")
    pack = Pack.from_json(made.stdout)
    assert (made.returncode, pack.elements, pack.class_names) == (0, 60, ("a", "b"))
    assert pack == Pack.from_json((dest / "manifest.json").read_text())
    again = [str(photos), str(dest), "--labels", "folders", "--on-error", "skip"]
    lines = run_limited(_call, None, arguments=again, watched=None)["output"].splitlines()
    assert lines[:2] == ["elements  60", "features  image (image), path (text), label (int32)"]
    assert lines[2].startswith("files     1 in tfrecord, ")
    assert lines[3:5] == ["classes   2", "left out  1"]
    assert "bad.jpg" in "".join(lines[5:])
    (dest / "shard-00000.tfrecord").write_bytes((dest / "shard-00000.tfrecord").read_bytes()[:-1])
    damaged = run_limited(_call, None, arguments=["--verify", str(dest)], watched=None)
    assert damaged["code"] == 1
    assert "shard-00000.tfrecord, record 59: the file ends before it does" in damaged["output"]


def _call(arguments: list[str], watched: str | None) -> dict[str, Any]:
    """Run the command line here; with something to watch, interrupt it as soon as that is there."""
    import contextlib
    import io
    import signal
    import threading
    import time

    from memfit.cli.main import run

    def interrupt() -> None:
        while watched and not Path(watched).exists():
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGINT)

    if watched:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run(["pack", *arguments])
    return {"code": code, "output": output.getvalue(), "errors": errors.getvalue()}


@pytest.mark.real
def test_an_interrupted_pack_goes_on(photos: Path) -> None:
    dest = photos.parent / "dest"
    arguments = [str(photos), str(dest), "--shards", "60"]
    ended = run_limited(_call, None, arguments=arguments, watched=str(dest / "shard-00001.done.json"))
    assert (ended["code"], ended["output"]) == (130, "")
    assert "Interrupted." in ended["errors"]
    left = {path.name for path in dest.iterdir()}
    assert "shard-00001.done.json" in left
    assert not [name for name in left if name == "manifest.json" or name.endswith(".tmp")]
    made = run_limited(_call, None, arguments=[*arguments, "--json"], watched=None)
    assert made["code"] == 0
    assert json.loads(made["output"])["elements"] == 60
    sound = run_limited(_call, None, arguments=["--verify", str(dest), "--json"], watched=None)
    assert (sound["code"], Verification.from_json(sound["output"]).damages) == (0, ())
