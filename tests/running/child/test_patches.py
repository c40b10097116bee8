"""What is done when a script imports a module: random numbers are seeded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from limited import QUIET

DRAWS = """
import sys
from memfit.running.child.patches import seed_everything
seed_everything(int(sys.argv[1]))
import random
import numpy as np
print(random.random(), np.random.random())
"""


def _drawn(seed: int) -> str:
    return subprocess.run(
        [sys.executable, "-c", DRAWS, str(seed)], capture_output=True, text=True, check=True
    ).stdout


def test_scripts_that_seed_nothing_draw_the_same_in_each_attempt() -> None:
    assert _drawn(5) == _drawn(5) != _drawn(6)


LOOKS_FIRST = """
import importlib.util
import sys
from memfit.running.child.patches import AfterImport
AfterImport("colorsys", lambda: print("first", hasattr(sys.modules["colorsys"], "rgb_to_hsv"))).install()
AfterImport("colorsys", lambda: print("second")).install()
print(importlib.util.find_spec("colorsys").name)
import colorsys
import colorsys
print(len([one for one in sys.meta_path if isinstance(one, AfterImport)]))
"""


def test_a_module_that_is_looked_for_long_before_it_is_imported_is_noticed_once_and_when_it_is_there() -> (
    None
):
    done = subprocess.run([sys.executable, "-c", LOOKS_FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["colorsys", "first True", "second", "0"]


UNDER_A_STRATEGY = """
import tensorflow as tf
import numpy as np

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
for _ in range(2):
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
model.evaluate(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.real
def test_what_is_not_guarded_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNDER_A_STRATEGY)
    environment = {**os.environ, **QUIET, "MEMFIT_HOME": str(tmp_path)}
    command = ["-m", "memfit", "run", "--budget", "200MiB", "--report", "report.json", "train.py"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said = "Not guarded: the model was created under a distribution strategy."
    assert done.stderr.count(said) == 1
    assert json.loads((tmp_path / "report.json").read_text())["notes"] == [said]
