"""The scripts of `examples/`: they run out under a limit, train under `memfit run`, and survive kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from limited import QUIET, run_limited
from memfit.core.errors import ChildFailed
from supervised import run_script

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# Micro-batches change what Dropout draws and BatchNorm sees: these two may only compute segments again, and
# the weights stay the same. The other four have no such layers, and every lever is allowed.
ONLY_AGAIN = ("--allow", "remat")
BUDGETS = {
    "image_classifier": ("176MiB", *ONLY_AGAIN),
    "autoencoder": ("128MiB",),
    "text_transformer": ("100MiB", *ONLY_AGAIN),
    "pipeline_with_callbacks": ("96MiB",),
    "custom_loop": ("120MiB",),
    "several_fits": ("40MiB",),
}


def _plainly(folder: str, script: str, arguments: list[str]) -> str | None:
    """Run a script as plain Python does, its loops without the guard of memfit.step; what it raised."""
    import os
    import runpy
    import sys

    import tensorflow as tf

    import memfit

    def plain_step(loss_of: Any, optimizer: Any, variables: Any) -> Any:
        @tf.function
        def step(*batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(*batch)
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        return step

    memfit.step = plain_step
    os.chdir(folder)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except tf.errors.OpError as error:
        return type(error).__name__
    return None


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, **QUIET, "MEMFIT_HOME": str(_home(folder))}


def _home(folder: Path) -> Path:
    """One for all runs of a test, so that they share plans."""
    return folder.parent / "home"


def _start(folder: Path, *command: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    with (folder / "output").open("a") as output:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=_environment(folder), stdout=output, stderr=output
        )


def _run(folder: Path, *command: str) -> tuple[int, str]:
    code = _start(folder, *command).wait()
    return code, (folder / "output").read_text()


def _supervised(name: str, *options: str, epochs: int) -> list[str]:
    budget, *levers = BUDGETS[name]
    script = [str(EXAMPLES / f"{name}.py"), "--epochs", str(epochs), "--save", "saved.npz"]
    return ["-m", "memfit", "run", "--budget", budget, *levers, *options, *script]


@pytest.mark.parametrize("name", BUDGETS)
def test_what_runs_out_trains_under_memfit_run_with_the_same_weights(tmp_path: Path, name: str) -> None:
    plain = {"script": str(EXAMPLES / f"{name}.py"), "arguments": ["--epochs", "1", "--save", "saved.npz"]}
    for folder in ("limited", "plain"):
        (tmp_path / folder).mkdir()
    try:
        raised = run_limited(_plainly, BUDGETS[name][0], folder=str(tmp_path / "limited"), **plain)
    except ChildFailed:
        raised = "died"
    if QUIET["TF_ENABLE_ONEDNN_OPTS"] == "0":  # kernels of oneDNN need other budgets, and die
        assert raised == "ResourceExhaustedError"
    assert run_limited(_plainly, None, folder=str(tmp_path / "plain"), **plain) is None
    code, said = _run(tmp_path / "ours", *_supervised(name, epochs=1))
    assert code == 0, said[-2000:]
    _compare(tmp_path / "plain" / "saved.npz", tmp_path / "ours" / "saved.npz")


def _compare(wanted_file: Path, found_file: Path) -> None:
    """As equal as sums in 32 bits are: those of a bias over a whole batch of pictures lose three digits."""
    with np.load(wanted_file) as wanted, np.load(found_file) as found:
        assert wanted.files == found.files
        for name in wanted.files:
            largest = float(np.abs(wanted[name]).max(initial=0.0))
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5 + 1e-3 * largest)


def _run_folder(folder: Path) -> Path:
    """That of the run whose script was started in this folder."""
    jobs = (_home(folder) / "runs").glob("*/job.json")
    found = (job.parent for job in jobs if f'"folder": "{folder}"' in job.read_text())
    return next(found, folder / "not yet")


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = _run_folder(folder) / "journal.jsonl"
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def _kept(folder: Path, training: int) -> list[int]:
    """The steps that checkpoints of a training were made at."""
    return [
        line["step"]
        for line in _lines(folder)
        if line["event"] == "checkpoint" and line["training"] == training and line["step"]
    ]


def _kill_when(is_time: Callable[[], bool], process: subprocess.Popen[str], number: int) -> None:
    while not is_time():
        assert process.poll() is None, "the script was over too soon"
        time.sleep(0.02)
    (child,) = psutil.Process(process.pid).children()
    child.send_signal(number)


def _assert_identical(wanted_file: Path, found_file: Path) -> None:
    with np.load(wanted_file) as wanted, np.load(found_file) as found:
        assert wanted.files == found.files
        assert all(wanted[name].tobytes() == found[name].tobytes() for name in wanted.files)


@pytest.mark.parametrize(
    ("name", "number", "training", "epochs"),
    [
        ("pipeline_with_callbacks", signal.SIGABRT, 1, 6),
        ("several_fits", signal.SIGKILL, 2, 40),
    ],
)
def test_a_script_that_is_killed_ends_with_the_same_bits(
    tmp_path: Path, name: str, number: int, training: int, epochs: int
) -> None:
    code, said = _run(tmp_path / "whole", *_supervised(name, epochs=epochs))
    assert code == 0, said[-2000:]
    folder = tmp_path / "killed"
    process = _start(folder, *_supervised(name, epochs=epochs))
    _kill_when(lambda: len(_kept(folder, training)) > 0, process, number)
    assert process.wait() == 0, (folder / "output").read_text()[-2000:]
    said = (folder / "output").read_text()
    assert f"Training {training} goes on at epoch " in said
    _assert_identical(tmp_path / "whole" / "saved.npz", folder / "saved.npz")


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    code, said = _run(tmp_path / "whole", *_supervised("autoencoder", epochs=8))
    assert code == 0, said[-2000:]
    folder = tmp_path / "killed"
    process = _start(folder, *_supervised("autoencoder", "--max-restarts", "0", epochs=8))
    _kill_when(lambda: len(_kept(folder, 1)) > 1, process, signal.SIGKILL)
    assert process.wait() == 128 + signal.SIGKILL
    newest = max(
        (_run_folder(folder) / "checkpoints").glob("training-1-step-*"),
        key=lambda path: int(path.stem.split("-")[-1]),
    )
    contents = bytearray(newest.read_bytes())
    contents[len(contents) // 2] ^= 1
    newest.write_bytes(contents)
    code, said = _run(folder, *_supervised("autoencoder", "--resume", epochs=8))
    assert code == 0, said[-2000:]
    assert "Training 1 goes on at epoch " in said
    _assert_identical(tmp_path / "whole" / "saved.npz", folder / "saved.npz")


TENSORFLOW_FIRST = """
import tensorflow as tf
import numpy as np
from tensorflow.keras import layers

images = np.random.default_rng(0).random((128, 48, 48, 3), "float32")
model = tf.keras.Sequential([layers.Input((48, 48, 3))])
for _ in range(4):
    model.add(layers.Conv2D(32, 3, padding="same", activation="relu"))
model.add(layers.Conv2D(3, 3, padding="same"))
model.compile(optimizer="adam", loss="mse")
model.fit(images, images, epochs=1, batch_size=64, verbose=0)
"""


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_a_script_that_imports_tensorflow_before_keras_is_planned_and_guarded(
    tmp_path: Path, onednn: str
) -> None:
    _, report = run_script(tmp_path, TENSORFLOW_FIRST, budget="80MiB", onednn=onednn)
    (training,) = report["trainings"]
    assert training["plan"]["chosen"]["micro_batch_size"] < 64
    assert training["steps"] == 2
