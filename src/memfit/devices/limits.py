"""A hard limit on the device, so that running out is an exception and not a kill.

On a CPU, TensorFlow reads two environment variables when its runtime starts and then uses its BFC
allocator, the one that GPUs use, with that limit. On a GPU the limit is a logical device's. The GPU side
has not been measured yet.
"""

from __future__ import annotations

import os
from typing import Any, SupportsIndex

from memfit.devices import onednn
from memfit.devices.frameworks import load_tensorflow, tensorflow_is_loaded
from memfit.devices.hosts import check_fits_machine
from memfit.errors import InvalidSize, RuntimeStarted
from memfit.units import parse_size

_USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_GPU_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_MEBIBYTE = 2**20
_BFC_DEFAULT_MEBIBYTES = 2**16  # what TensorFlow takes when BFC is on and no limit is named


def limit(
    size: str | SupportsIndex | None = None, *, growth: bool = False, raising: bool = True
) -> int | None:
    """Limit the device's memory before TensorFlow's runtime starts; returns the limit in bytes.

    The limit is rounded down to whole MiB. `growth=True` makes a GPU take memory as it is needed (a CPU
    always does); with a size it grows up to that size. A second call before the runtime starts replaces
    the first. Kernels of oneDNN, which crash where they run out of memory instead of raising, are left out;
    with `raising=False` they are not.

    >>> import memfit
    >>> memfit.limit("4GiB")
    4294967296
    """
    requested = None if size is None else _whole_mebibytes(size)
    if requested is None and not growth:
        raise InvalidSize(size, name="size")
    if requested is not None and raising:
        onednn.leave_out()
    tensorflow = load_tensorflow()
    gpus = tensorflow.config.list_physical_devices("GPU")
    if runtime_started():
        if requested is not None and requested == limit_in_force():
            return requested
        raise RuntimeStarted(requested, in_force_bytes=limit_in_force())
    if gpus:
        _limit_gpus(tensorflow, gpus, requested, growth=growth)
    elif requested is not None:
        check_fits_machine(requested, name="size")
        os.environ[_USE_BFC] = "1"
        os.environ[_CPU_LIMIT] = str(requested // _MEBIBYTE)
    return limit_in_force()


def _whole_mebibytes(size: str | SupportsIndex) -> int:
    return parse_size(size, least_bytes=_MEBIBYTE) // _MEBIBYTE * _MEBIBYTE


def _limit_gpus(tensorflow: Any, gpus: list[Any], requested_bytes: int | None, *, growth: bool) -> None:
    for gpu in gpus:
        if requested_bytes is None:
            tensorflow.config.experimental.set_memory_growth(gpu, True)
            continue
        configuration = tensorflow.config.LogicalDeviceConfiguration(requested_bytes // _MEBIBYTE)
        tensorflow.config.set_logical_device_configuration(gpu, [configuration])
    if growth and requested_bytes is not None:
        # TensorFlow's Python refuses growth on a logical device; its runtime does not.
        os.environ[_GPU_GROWTH] = "true"


def runtime_started() -> bool:
    """Whether TensorFlow's runtime has started: from then on its memory cannot be limited."""
    if not tensorflow_is_loaded():
        return False
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


def limit_in_force() -> int | None:
    """The limit that the allocator of the first device enforces, or will once the runtime starts."""
    if gpu := _first_gpu():
        return _gpu_limit(gpu)
    if not _is_true(os.environ.get(_USE_BFC, "")) or (runtime_started() and not _keeps_statistics()):
        return None
    try:
        mebibytes = int(os.environ.get(_CPU_LIMIT, _BFC_DEFAULT_MEBIBYTES))
    except ValueError:
        mebibytes = _BFC_DEFAULT_MEBIBYTES
    return mebibytes * _MEBIBYTE


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true")


def _first_gpu() -> Any:
    if not tensorflow_is_loaded():
        return None
    return next(iter(load_tensorflow().config.list_physical_devices("GPU")), None)


def _gpu_limit(gpu: Any) -> int | None:
    configurations = load_tensorflow().config.get_logical_device_configuration(gpu)
    if not configurations or configurations[0].memory_limit is None:
        return None
    return int(configurations[0].memory_limit) * _MEBIBYTE


def _keeps_statistics() -> bool:
    try:
        load_tensorflow().config.experimental.get_memory_info("CPU:0")
    except ValueError:
        return False
    return True


def describe_allocator() -> str:
    """The allocator of the first device, in words; starts the runtime."""
    limit_bytes = limit_in_force()
    limit_text = "no limit" if limit_bytes is None else f"limit {limit_bytes >> 20} MiB"
    if first_device() == "GPU:0":
        return f"BFC on the GPU, {limit_text}"
    if not _keeps_statistics():
        return "TensorFlow's plain CPU allocator: no limit and no statistics"
    return f"BFC on the CPU, {limit_text}"


def first_device() -> str:
    """The device that training runs on: the first GPU, else the CPU."""
    load_tensorflow()
    return "GPU:0" if _first_gpu() else "CPU:0"


def pool_bytes(device: str) -> int | None:
    """The size of a device's memory pool as TensorFlow's runtime reports it; starts the runtime.

    On a CPU the runtime reports a constant that means nothing.
    """
    load_tensorflow()
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.eager import context

    context.ensure_initialized()
    devices = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    for index in range(pywrap_tf_session.TF_DeviceListCount(devices)):
        if pywrap_tf_session.TF_DeviceListName(devices, index).endswith(f"device:{device}"):
            return int(pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index))
    return None
