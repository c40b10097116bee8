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
