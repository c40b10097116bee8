"""oneDNN, whose kernels TensorFlow uses on some CPUs: they are faster, but crash where they find no memory.

TensorFlow decides when it is imported, by an environment variable, else by the CPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from memfit.devices.frameworks import tensorflow_is_loaded

logger = logging.getLogger("memfit")

SWITCH = "TF_ENABLE_ONEDNN_OPTS"
_DRIVER = Path("/dev/nvidiactl")  # with a GPU, training runs elsewhere
_FEATURES = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}


def would_be_used(environment: Mapping[str, str], processors: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether TensorFlow would use it on its own accord: nobody has said, and the CPU is made for it."""
    return SWITCH not in environment and bool(_FEATURES & _features(processors))


def leave_out() -> None:
    """Have TensorFlow use kernels that raise where they find no memory, unless somebody has chosen."""
    if tensorflow_is_loaded():
        if is_used():
            logger.warning(
                "oneDNN is on: where its kernels run out of memory, the process crashes. "
                "Try: memfit.limit before TensorFlow is imported, or %s=0.",
                SWITCH,
            )
    elif switch_off():
        logger.warning(
            "oneDNN is off under a limit, since its kernels crash where they run out of memory. "
            "With %s=1 it stays on and is faster.",
            SWITCH,
        )


def switch_off() -> bool:
    """Have TensorFlow, once it is imported, do without it on a CPU, unless somebody has chosen."""
    if tensorflow_is_loaded() or _DRIVER.exists() or not would_be_used(os.environ):
        return False
    os.environ[SWITCH] = "0"
    return True


def is_used() -> bool:
    """Whether TensorFlow uses it, now that it is imported."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def _features(processors: Path) -> set[str]:
    try:
        lines = processors.read_text().splitlines()
    except OSError:
        return set()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())
