"""TensorFlow's runtime: started or not, its pools and kernels, oneDNN, its seeds, and the tensors it makes.

TensorFlow is imported inside the functions: `memfit.machine` stands on this module and has to stay light.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any


def has_started() -> bool:
    """Whether the runtime has started."""
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


def pool_bytes(device: str) -> int | None:
    """The size of a device's memory pool as TensorFlow's runtime reports it; starts the runtime.

    On a CPU the runtime reports a constant that means nothing.
    """
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.eager import context

    context.ensure_initialized()
    devices = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    for index in range(pywrap_tf_session.TF_DeviceListCount(devices)):
        if pywrap_tf_session.TF_DeviceListName(devices, index).endswith(f"device:{device}"):
            return int(pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index))
    return None


def uses_onednn() -> bool:
    """Whether TensorFlow, which is imported, uses the kernels of oneDNN."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def operation_seeds() -> random.Random:
    """TensorFlow's generator of seeds for operations that have none, under a global seed."""
    from tensorflow.python.eager import context

    seeds: random.Random = context.context()._rng
    return seeds


def has_global_seed() -> bool:
    """Whether TensorFlow's global seed has been set."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None


def hand_over(way: Callable[[Any, Any], Any]) -> None:
    """Ask `way(value, dtype)` for the eager tensor of each value from now on; None: TensorFlow makes it."""
    from tensorflow.python.framework import constant_op

    to_tensor = constant_op.convert_to_eager_tensor

    @functools.wraps(to_tensor)
    def convert(value: Any, ctx: Any, dtype: Any = None) -> Any:
        made = way(value, dtype)
        return to_tensor(value, ctx, dtype) if made is None else made

    constant_op.convert_to_eager_tensor = convert


def forget_kernels() -> None:
    """Let TensorFlow drop the kernels that it keeps ready for functions and operations."""
    from tensorflow.python.eager import context

    context.context().clear_kernel_cache()
