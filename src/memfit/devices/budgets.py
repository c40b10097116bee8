"""machine -> Budget: the bytes that training may take when the user names none, or when they do."""

from __future__ import annotations

from typing import SupportsIndex

from memfit.devices.frameworks import tensorflow_is_loaded
from memfit.devices.hosts import check_fits_machine, host_memory
from memfit.devices.limits import first_device, limit_in_force, pool_bytes
from memfit.records import Budget, BudgetSource, HostMemory
from memfit.units import parse_size

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
    """What is kept back for memory that lives outside the allocator.

    max(1 GiB, 10 % of what is available), and 0.5 GiB more while TensorFlow is not imported yet, but
    never more than half. A process was measured at up to 0.9 GiB above import and allocator peak.
    """
    import_bytes = 0 if tensorflow_loaded else _IMPORT_BYTES
    return min(available_bytes // 2, max(_GIBIBYTE, available_bytes // 10) + import_bytes)
