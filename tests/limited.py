"""The one way in which tests use TensorFlow: a function in a process of its own, under a real limit."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forks import run_in_fork
from memfit.core.units import parse_size

# Warnings are errors in children too, where they come from memfit's own modules.
warnings.filterwarnings("error", module=r"memfit\b")

_HOME = tempfile.TemporaryDirectory(prefix="memfit-home-")

QUIET = {
    "MEMFIT_HOME": _HOME.name,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    # TensorFlow's own kernels, whatever the CPU; MEMFIT_TEST_ONEDNN=1 runs the same tests with oneDNN.
    "TF_ENABLE_ONEDNN_OPTS": os.environ.get("MEMFIT_TEST_ONEDNN", "0"),
    # What is tested here is tested in children too, also where another checkout is installed.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
}


def run_limited(
    function: Callable[..., Any],
    limit: str | None,
    /,
    environment: dict[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """Call `function(**arguments)` under a limit and return its result, which must be JSON."""
    limit_bytes = None if limit is None else parse_size(limit)
    return run_in_fork(
        function, arguments, limit_bytes=limit_bytes, environment={**QUIET, **(environment or {})}
    )
