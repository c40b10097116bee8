"""The memory of the machine and of the cgroups around this process, whichever is tighter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from memfit.errors import LargerThanMachine
from memfit.records import HostMemory


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
    """How many processes the kernel has killed for memory in the cgroups around this process, so far."""
    return sum(
        _read_statistic(folder, "oom_kill", version.events) for version, folder in _cgroup_folders(root)
    )


def check_fits_machine(size_bytes: int, *, name: str) -> None:
    """Refuse a size that is larger than the machine, or than the cgroup around this process."""
    memory = host_memory()
    if size_bytes > memory.usable_total_bytes:
        inside = memory.usable_total_bytes < memory.total_bytes
        raise LargerThanMachine(
            size_bytes,
            name=name,
            total_bytes=memory.usable_total_bytes,
            where="the memory of its cgroup" if inside else "the memory of this machine",
        )


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
    """Where cgroups are mounted, and which part of their tree is mounted there."""
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
