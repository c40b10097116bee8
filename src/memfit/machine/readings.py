"""Memory as it is now: of the machine, of the cgroups around this process, of the device, of the process."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from memfit.core.errors import LargerThanMachine, NotMeasurable
from memfit.core.records import DeviceMemory, HostMemory
from memfit.machine.frameworks import first_device, load_tensorflow


def host_memory(root: Path = Path("/")) -> HostMemory:
    """RAM of the machine and the tightest memory cgroup, v1 or v2, at any level of nesting.

    `root` is where /proc is found; tests and containers with another view pass their own.
    """
    ram = psutil.virtual_memory()
    levels = [level for level in _cgroup_levels(root) if level.limit_bytes < ram.total]
    return HostMemory(
        total_bytes=ram.total,
        available_bytes=ram.available,
        cgroup_limit_bytes=min((level.limit_bytes for level in levels), default=None),
        cgroup_available_bytes=min((level.available_bytes for level in levels), default=None),
    )


def count_kills(root: Path = Path("/")) -> int:
    """The number of processes killed by the kernel for memory in the cgroups around this process, so far."""
    return sum(
        _read_statistic(folder, "oom_kill", version.events) for version, folder in _cgroup_folders(root)
    )


def check_fits_machine(size_bytes: int, *, name: str) -> None:
    """Refuse a size that is larger than the machine, or than the cgroup around this process."""
    memory = host_memory()
    places = [(memory.total_bytes, "the memory of this machine")]
    if memory.cgroup_limit_bytes is not None:
        places.append((memory.cgroup_limit_bytes, "the memory of its cgroup"))
    total_bytes, where = min(places, key=lambda place: place[0])
    if size_bytes > total_bytes:
        raise LargerThanMachine(size_bytes, name=name, total_bytes=total_bytes, where=where)


@contextmanager
def no_more_than_there_is() -> Iterator[None]:
    """Let an allocation fail that the machine has no room for, where the system would kill the process later.

    Only on Linux, whose limit on data counts what is asked for.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    data_bytes = psutil.Process().memory_info().data
    soft = data_bytes + host_memory().usable_available_bytes
    if before[1] != resource.RLIM_INFINITY:
        soft = min(soft, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@dataclass(frozen=True)
class _Level:
    """One cgroup with a memory limit."""

    limit_bytes: int
    used_bytes: int

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True)
class _Version:
    """The names under which one version of cgroups keeps its figures."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: str  # page cache that the kernel gives up before it kills
    events: str  # where it counts whom it killed


_V1 = _Version(
    ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"
)
_V2 = _Version(("memory.max", "memory.high"), "memory.current", "inactive_file", "memory.events")


def _cgroup_levels(root: Path) -> Iterator[_Level]:
    for version, folder in _cgroup_folders(root):
        yield from _read_level(folder, version)


def _cgroup_folders(root: Path) -> Iterator[tuple[_Version, Path]]:
    """The folder of each memory cgroup around this process, the innermost first."""
    for version, mount, mounted_from in _memory_mounts(root):
        path = _own_path(root, version)
        if path is None:
            continue
        # In a container the mount shows only a part of the tree, and the path may lie outside of it.
        inside = path.relative_to(mounted_from) if path.is_relative_to(mounted_from) else PurePosixPath()
        yield from ((version, mount / folder) for folder in (inside, *inside.parents))


def _memory_mounts(root: Path) -> Iterator[tuple[_Version, Path, PurePosixPath]]:
    """The mount points of memory cgroups: the version, the folder, and the part of the tree mounted there."""
    for line in _read_lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        mount = root / fields[4].lstrip("/")
        if kind[0] == "cgroup2":
            yield _V2, mount, PurePosixPath(fields[3])
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _V1, mount, PurePosixPath(fields[3])


def _own_path(root: Path, version: _Version) -> PurePosixPath | None:
    for line in _read_lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version is _V2 and number == "0") or (version is _V1 and "memory" in controllers.split(",")):
            return PurePosixPath(path)
    return None


def _read_level(folder: Path, version: _Version) -> Iterator[_Level]:
    limits = [limit for name in version.limits if (limit := _read_number(folder / name)) is not None]
    usage = _read_number(folder / version.usage)
    if limits and usage is not None:
        reclaimable = _read_statistic(folder, version.reclaimable, "memory.stat")
        yield _Level(min(limits), max(0, usage - reclaimable))


def _read_number(path: Path) -> int | None:
    text = "".join(_read_lines(path)).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _read_statistic(folder: Path, name: str, file: str) -> int:
    for line in _read_lines(folder / file):
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"


def uses_bfc_on_cpu() -> bool:
    """Whether TensorFlow is told to use on CPUs the allocator that counts, as a limit does."""
    return os.environ.get(USE_BFC, "").strip().lower() in ("1", "true")


def device_memory(device: str | None = None) -> DeviceMemory:
    """Current and peak bytes of a device, to the byte as TensorFlow counts them; starts the runtime.

    >>> import memfit
    >>> memfit.limit("1GiB")
    1073741824
    >>> memfit.devices.device_memory().current_bytes
    0
    """
    device = device or first_device()
    if "CPU" in device and not uses_bfc_on_cpu():
        raise NotMeasurable(device)  # with oneDNN there are figures, but they leave out most tensors
    try:
        info = load_tensorflow().config.experimental.get_memory_info(device)
    except ValueError as error:
        raise NotMeasurable(device) from error
    return DeviceMemory(device, current_bytes=info["current"], peak_bytes=info["peak"])


def reset_peak(device: str | None = None) -> None:
    """Make the peak start again from what is in use now."""
    device = device or first_device()
    memory = device_memory(device)
    for measurement in _open:
        measurement.note(memory)
    load_tensorflow().config.experimental.reset_memory_stats(device)


class PeakMeasurement:
    """The memory use of a block: its base, its peak, and the peak over the base."""

    def __init__(self, base: DeviceMemory) -> None:
        self.device = base.device
        self.base_bytes = base.current_bytes
        self.peak_bytes = base.current_bytes

    @property
    def over_base_bytes(self) -> int:
        """The peak above what was in use when the block began."""
        return self.peak_bytes - self.base_bytes

    def note(self, memory: DeviceMemory) -> None:
        """Take in a reading; used when the device's peak is about to be reset."""
        if memory.device == self.device:
            self.peak_bytes = max(self.peak_bytes, memory.peak_bytes)


# Blocks being measured, outermost first: an inner block resets the device's peak, and the outer ones
# must still see what was before.
_open: list[PeakMeasurement] = []


@contextmanager
def measure_peak(device: str | None = None) -> Iterator[PeakMeasurement]:
    """Measure the peak of a block; blocks may be nested.

    >>> with memfit.devices.measure_peak() as measured:
    ...     model.train_on_batch(x, y)
    >>> measured.over_base_bytes
    """
    reset_peak(device)
    measurement = PeakMeasurement(device_memory(device))
    _open.append(measurement)
    try:
        yield measurement
    finally:
        measurement.note(device_memory(device))
        _open.remove(measurement)


def process_bytes() -> int:
    """The resident memory (RSS) of this process."""
    return int(psutil.Process().memory_info().rss)


def return_free_memory() -> None:
    """Have the C library give what is free back to the system; where it cannot, it stays free."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
