"""machine -> Budget: limits, readings, and what counts as running out of memory."""

from memfit.machine.child_process import run_in_child
from memfit.machine.frameworks import (
    check_installed,
    find_packages,
    first_device,
    load_keras,
    load_tensorflow,
)
from memfit.machine.limits import (
    budget_of_host,
    describe_allocator,
    find_budget,
    limit,
    limit_in_force,
    pool_bytes,
    reserve_bytes,
    runtime_started,
)
from memfit.machine.out_of_memory import is_oom, read_oom
from memfit.machine.readings import (
    PeakMeasurement,
    check_fits_machine,
    count_kills,
    device_memory,
    host_memory,
    measure_peak,
    process_bytes,
    reset_peak,
)

__all__ = [
    "PeakMeasurement",
    "budget_of_host",
    "check_fits_machine",
    "check_installed",
    "count_kills",
    "describe_allocator",
    "device_memory",
    "find_budget",
    "find_packages",
    "first_device",
    "host_memory",
    "is_oom",
    "limit",
    "limit_in_force",
    "load_keras",
    "load_tensorflow",
    "measure_peak",
    "pool_bytes",
    "process_bytes",
    "read_oom",
    "reserve_bytes",
    "reset_peak",
    "run_in_child",
    "runtime_started",
]
