"""Random numbers that are the same in each attempt."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np

from memfit.supervision.randomness import unmoved

DRAWS = """
import sys
from memfit.supervision.randomness import seed_everything
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


def test_generators_that_nobody_has_drawn_from_are_known() -> None:
    own, theirs = random.Random(1), np.random.RandomState(1)
    before = {"python": own.getstate(), "numpy": theirs.get_state()}
    theirs.random()
    now = {"python": own.getstate(), "numpy": theirs.get_state()}
    assert unmoved(before, now) == ("python",)
    assert unmoved(before, before) == ("python", "numpy")
