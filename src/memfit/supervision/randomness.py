"""The random numbers of a script: seeded so that it can be run again, and put back where they were."""

from __future__ import annotations

import random
import sys
from typing import Any

from memfit.supervision.imports import AfterImport


def seed_everything(seed: int) -> None:
    """Have Python, NumPy and TensorFlow draw the same in each attempt, unless the script seeds them."""
    random.seed(seed)
    AfterImport("numpy", lambda: _seed_numpy(seed)).install()
    AfterImport("tensorflow", lambda: _seed_tensorflow(seed)).install()


def _seed_numpy(seed: int) -> None:
    sys.modules["numpy"].random.seed(seed)


def _seed_tensorflow(seed: int) -> None:
    sys.modules["tensorflow"].random.set_seed(seed)


def random_state() -> dict[str, Any]:
    """Where the generators of Python, NumPy and TensorFlow are."""
    import numpy as np

    from memfit.supervision import internals

    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": internals.operation_seeds().getstate() if internals.has_global_seed() else None,
    }


def put_back(state: dict[str, Any], *, only: tuple[str, ...] = ("python", "numpy", "tensorflow")) -> None:
    """Have those generators go on from where they were."""
    import numpy as np

    from memfit.supervision import internals

    if "python" in only:
        random.setstate(state["python"])
    if "numpy" in only:
        np.random.set_state(state["numpy"])
    if "tensorflow" in only and state["tensorflow"] is not None and internals.has_global_seed():
        internals.operation_seeds().setstate(state["tensorflow"])


def unmoved(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """The generators that nobody has drawn from in between."""
    return tuple(name for name, state in before.items() if _plain(state) == _plain(now[name]))


def _plain(state: Any) -> Any:
    """A state that can be compared, arrays and all."""
    if isinstance(state, tuple | list):
        return tuple(map(_plain, state))
    return tuple(state.tolist()) if hasattr(state, "tolist") else state
