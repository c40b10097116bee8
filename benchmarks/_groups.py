"""Memory cgroups: the kernel kills a process that takes more than its group may."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_group(limit_bytes: int | None) -> Iterator[Path | None]:
    """A memory cgroup of our own, v1 or v2, whose processes get no more than so much; none for None."""
    if limit_bytes is None:
        yield None
        return
    version_1 = Path("/sys/fs/cgroup/memory")
    root, limit = (
        (version_1, "memory.limit_in_bytes") if version_1.is_dir() else (version_1.parent, "memory.max")
    )
    group = root / f"memfit-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()


def within(group: Path | None, command: list[str]) -> list[str]:
    """A command that joins a group first."""
    if group is None:
        return command
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
