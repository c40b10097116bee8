"""What is done when a script imports a module: random numbers are seeded."""

from __future__ import annotations

import subprocess
import sys

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
