"""oneDNN, whose kernels TensorFlow uses by default on some CPUs: they are faster, and some need less memory.

TensorFlow decides when it is imported, by an environment variable, else by the CPU. memfit leaves that as it
is unless the user chooses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from memfit.core.errors import TensorFlowImported
from memfit.machine.frameworks import tensorflow_is_loaded
from memfit.private.tensorflow.runtime import uses_onednn

SWITCH = "TF_ENABLE_ONEDNN_OPTS"
_FEATURES = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}


def would_be_used(environment: Mapping[str, str], processors: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether TensorFlow would use it by default: the user has not chosen, and the CPU is made for it."""
    return SWITCH not in environment and bool(_FEATURES & _features(processors))


def choose_onednn(value: bool) -> None:
    """Have TensorFlow, once it is imported, use oneDNN or do without it; raise where it is too late."""
    if not tensorflow_is_loaded():
        os.environ[SWITCH] = str(int(value))
    elif uses_onednn() != value:
        raise TensorFlowImported(onednn=value)


def _features(processors: Path) -> set[str]:
    try:
        lines = processors.read_text().splitlines()
    except OSError:
        return set()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())
