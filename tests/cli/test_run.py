"""`memfit run`: scripts that know nothing of memfit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from limited import run_limited

pytestmark = pytest.mark.real

BUDGET = "40MiB"
TRAINS = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(7)
model = keras.Sequential([
    keras.Input((128, 32)),
    *(layers.Dense(64, activation="relu") for _ in range(8)),
    layers.Dense(32),
])
model.compile("adam", "mse")
x = np.random.default_rng(0).random((192, 128, 32), "float32")
history = model.fit(x, x, batch_size=128, epochs=2, validation_split=1 / 3, verbose=0)
loss = model.evaluate(x, x, batch_size=128, verbose=0)
seen = model.predict(x, batch_size=192, verbose=0)
assert seen.shape == x.shape
model.train_on_batch(x[:128], x[:128])
np.savez(sys.argv[1], loss=loss, **{str(n): w for n, w in enumerate(model.get_weights())})

class Counting(keras.Sequential):
    fits = 0

    def fit(self, *arguments, **options):
        self.fits += 1
        return super().fit(*arguments, **options)

own = Counting([keras.Input((4,)), layers.Dense(1)])
own.compile("sgd", "mse")
own.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
assert (own.fits, int(own.optimizer.iterations)) == (1, 1)
print("done", history.history["loss"][-1] > 0)
"""


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "MEMFIT_HOME": str(folder / "home"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",  # which a limit leaves out: all rows compute alike
        },
    )


def _plainly(script: str, saved: str) -> None:
    import runpy
    import sys

    sys.argv = [script, saved]
    runpy.run_path(script, run_name="__main__")


def test_a_script_trains_in_its_budget_with_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    run_limited(_plainly, None, script=str(tmp_path / "train.py"), saved=str(tmp_path / "plain.npz"))
    ours = _run(tmp_path, "-m", "memfit", "run", "--budget", BUDGET, "train.py", "ours.npz")
    assert (ours.returncode, ours.stdout) == (0, "done True\n"), ours.stderr[-2000:]
    assert "To stay within 40.0 MiB" in ours.stderr
    with np.load(tmp_path / "plain.npz") as wanted, np.load(tmp_path / "ours.npz") as found:
        assert wanted.files == found.files
        for name in wanted.files:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    ended = _run(tmp_path, "-m", "memfit", "run", "--budget", "1GiB", "missing.py")
    assert ended.returncode == 2
    assert ended.stderr.startswith("ScriptNotFound: there is no script 'missing.py'")


def test_a_script_that_is_killed_is_explained(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    ended = _run(tmp_path, "-m", "memfit", "run", "killed.py")
    assert ended.returncode == 128 + signal.SIGKILL
    killed = "memfit: It was killed by SIGKILL. Nothing says that memory was the reason."
    assert ended.stderr.splitlines() == [
        killed,
        "memfit: Starting it again (1 of at most 10 times).",
        killed,
        "memfit: It is not started again: it has ended like this outside of training before.",
    ]
    ended = _run(tmp_path, "-m", "memfit", "run", "--max-restarts", "0", "killed.py")
    assert ended.stderr.splitlines() == [
        killed,
        "memfit: It is not started again: 0 restarts are the most that were asked for.",
    ]
