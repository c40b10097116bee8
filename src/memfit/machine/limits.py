"""The hard limit on the device, so that running out is an exception and not a kill; and the budget of plans.

On a CPU, TensorFlow reads two environment variables when its runtime starts and then uses its BFC
allocator, the one that GPUs use, with that limit. On a GPU the limit is a logical device's. The GPU side
has not been measured yet. The budget is the bytes that training may take, whether or not the user names any.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

from memfit.core.errors import InvalidSize, NotMeasurable, RuntimeStarted
from memfit.core.records import Budget, BudgetSource, HostMemory
from memfit.core.units import parse_size
from memfit.machine.frameworks import first_device, first_gpu, load_tensorflow, tensorflow_is_loaded
from memfit.machine.onednn import choose_onednn
from memfit.machine.readings import USE_BFC, check_fits_machine, device_memory, host_memory, uses_bfc_on_cpu
from memfit.private.tensorflow import runtime

_CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_GPU_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_MEBIBYTE = 2**20
_BFC_DEFAULT_MEBIBYTES = 2**16  # what TensorFlow takes when BFC is on and no limit is named


def limit(
    size: str | SupportsIndex | None = None, *, growth: bool = False, onednn: bool | None = None
) -> int | None:
    """Limit the device's memory before TensorFlow's runtime starts; returns the limit in bytes.

    The limit is rounded down to whole MiB. `growth=True` makes a GPU take memory as it is needed (a CPU
    always does); with a size it grows up to that size. A second call before the runtime starts replaces
    the first. TensorFlow uses oneDNN on a CPU as it does by default, unless `onednn` says otherwise, which
    has to be before TensorFlow is imported.

    >>> import memfit
    >>> memfit.limit("4GiB")
    4294967296
    """
    requested = None if size is None else _whole_mebibytes(size)
    if requested is None and not growth:
        raise InvalidSize(size, name="size")
    if onednn is not None:
        choose_onednn(onednn)
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
        os.environ[USE_BFC] = "1"
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
    return runtime.has_started()


def limit_in_force() -> int | None:
    """The limit that the allocator of the first device enforces, or will once the runtime starts."""
    if gpu := first_gpu():
        return _gpu_limit(gpu)
    if not uses_bfc_on_cpu() or (runtime_started() and not _keeps_statistics()):
        return None
    try:
        mebibytes = int(os.environ.get(_CPU_LIMIT, _BFC_DEFAULT_MEBIBYTES))
    except ValueError:
        mebibytes = _BFC_DEFAULT_MEBIBYTES
    return mebibytes * _MEBIBYTE


def _gpu_limit(gpu: Any) -> int | None:
    configurations = load_tensorflow().config.get_logical_device_configuration(gpu)
    if not configurations or configurations[0].memory_limit is None:
        return None
    return int(configurations[0].memory_limit) * _MEBIBYTE


def _keeps_statistics() -> bool:
    try:
        device_memory("CPU:0")
    except NotMeasurable:
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


def pool_bytes(device: str) -> int | None:
    """The size of a device's memory pool as TensorFlow's runtime reports it; starts the runtime.

    On a CPU the runtime reports a constant that means nothing.
    """
    load_tensorflow()
    return runtime.pool_bytes(device)


_GIBIBYTE = 2**30
_IMPORT_BYTES = _GIBIBYTE // 2


def find_budget(size: str | SupportsIndex | None = None, *, name: str = "budget") -> Budget:
    """The budget in effect: the smaller of what is given and the limit; without either, the default.

    The default is the limit in force, else the GPU's pool, else the available RAM (of the machine or of
    its cgroup, whichever is smaller) less `reserve_bytes`.
    """
    limit_bytes = limit_in_force()
    on_gpu = tensorflow_is_loaded() and first_device() == "GPU:0"
    if size is not None:
        given = parse_size(size, name=name)
        if not on_gpu:
            check_fits_machine(given, name=name)
        return Budget(min(given, limit_bytes or given), "given", limit_bytes)
    if limit_bytes is not None:
        return Budget(limit_bytes, "limit", limit_bytes)
    if on_gpu and (pool := pool_bytes("GPU:0")):
        return Budget(pool, "gpu", None)
    return budget_of_host(host_memory(), tensorflow_loaded=tensorflow_is_loaded())


def budget_of_host(host: HostMemory, *, tensorflow_loaded: bool) -> Budget:
    """The default on a CPU without a limit: the available RAM less a reserve."""
    available = host.usable_available_bytes
    reserve = reserve_bytes(available, tensorflow_loaded=tensorflow_loaded)
    source: BudgetSource = "machine" if available == host.available_bytes else "cgroup"
    return Budget(available - reserve, source, None, reserve)


def reserve_bytes(available_bytes: int, *, tensorflow_loaded: bool) -> int:
    """The bytes kept back for memory that lives outside the allocator.

    max(1 GiB, 10 % of what is available), and 0.5 GiB more while TensorFlow is not imported yet, but
    never more than half. A process was measured at up to 0.9 GiB above import and allocator peak.
    """
    import_bytes = 0 if tensorflow_loaded else _IMPORT_BYTES
    return min(available_bytes // 2, max(_GIBIBYTE, available_bytes // 10) + import_bytes)


def free_bytes() -> int | None:
    """The free bytes of the device's pool; None where they are unknown."""
    in_force, used = limit_in_force(), bytes_in_use()
    return None if in_force is None or used is None else in_force - used


def bytes_in_use() -> int | None:
    """The bytes in use on the device now; None where its allocator does not count."""
    try:
        return device_memory().current_bytes
    except NotMeasurable:
        return None


_MOST_SPARE_BYTES = 256 << 10
_SPARE_SHARE = 128  # of the limit
_PATIENCE_SECONDS = 2.0  # for most steps that is more than they take
_LOOK_SECONDS = 0.5
_IDLE_SECONDS = 30.0  # after the last step, the thread ends


class _SparePiece:
    """A small piece of the device's pool that is given back while a step that ran out comes to its end.

    An operation that finds no memory waits for ten seconds. After the first has failed, those that had begun
    go on, and in a pool that is full to the last bytes even a single number waits, one after the other: that
    took minutes. With the spare piece given back they find room, and the step ends with the error of the
    first.
    """

    def __init__(self) -> None:
        self._piece: Any = None
        self._began: float | None = None  # the step that runs
        self._last = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def beside_step(self) -> Iterator[None]:
        """Have the piece while a step runs, as long as the pool is not full for seconds."""
        limit_bytes = limit_in_force()
        if limit_bytes is None:
            yield
            return
        self._take(min(_MOST_SPARE_BYTES, limit_bytes // _SPARE_SHARE))
        self._began = self._last = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, daemon=True, name="memfit spare piece")
            self._thread.start()
        try:
            yield
        finally:
            self._began = None

    def give_back(self) -> None:
        """Let it go, until the next step."""
        self._piece = None

    def _take(self, size_bytes: int) -> None:
        if self._piece is None and (free_bytes() or 0) > 4 * size_bytes:
            self._piece = load_tensorflow().zeros((size_bytes,), "uint8")

    def _look(self) -> None:
        while self._began is not None or time.monotonic() - self._last < _IDLE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            began, piece = self._began, self._piece
            if began is None or piece is None or time.monotonic() - began < _PATIENCE_SECONDS:
                continue
            size_bytes = len(piece)
            del piece
            if (free_bytes() or 0) < size_bytes:
                self.give_back()
        self.give_back()


SPARE_PIECE = _SparePiece()
