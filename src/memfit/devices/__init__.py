"""machine -> Budget: limits, readings, and what counts as running out of memory."""

from memfit.devices.budgets import budget_of_host, find_budget, reserve_bytes
from memfit.devices.children import run_in_child
from memfit.devices.frameworks import check_installed, find_packages, load_keras, load_tensorflow
from memfit.devices.hosts import check_fits_machine, count_kills, host_memory
from memfit.devices.limits import (
    describe_allocator,
    first_device,
    limit,
    limit_in_force,
    pool_bytes,
    runtime_started,
)
from memfit.devices.ooms import is_oom, read_oom
from memfit.devices.readings import PeakMeasurement, device_memory, measure_peak, process_bytes, reset_peak

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
