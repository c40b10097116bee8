"""Memory cgroups as files, in every layout that containers and machines show, and once for real."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from memfit.core.errors import LargerThanMachine
from memfit.machine import check_fits_machine, host_memory

MIB = 2**20


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2_MOUNT = "29 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "36 25 0:31 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def _v2(*, limit: str, used: int, cache: int = 0, high: str = "max") -> dict[str, str]:
    return {
        "memory.max": f"{limit}\n",
        "memory.high": f"{high}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 1\ninactive_file {cache}\n",
    }


def _at(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_version_2_with_the_tightest_limit_in_the_middle(tmp_path: Path) -> None:
    root = _write(tmp_path, {
        "proc/self/mountinfo": V2_MOUNT.format(root="/"),
        "proc/self/cgroup": "0::/user/job/step\n",
        **_at("sys/fs/cgroup/user/job/step", _v2(limit="max", used=10 * MIB)),
        **_at("sys/fs/cgroup/user/job", _v2(limit=str(300 * MIB), used=100 * MIB, cache=40 * MIB)),
        **_at("sys/fs/cgroup/user", _v2(limit=str(900 * MIB), used=800 * MIB)),
    })  # fmt: skip
    memory = host_memory(root)
    assert memory.cgroup_limit_bytes == 300 * MIB
    assert memory.cgroup_available_bytes == 100 * MIB  # the outer one has less left than the inner one
    assert memory.total_bytes == psutil.virtual_memory().total


def test_version_2_counts_reclaimable_page_cache_as_available(tmp_path: Path) -> None:
    root = _write(tmp_path, {
        "proc/self/mountinfo": V2_MOUNT.format(root="/"),
        "proc/self/cgroup": "0::/job\n",
        **_at("sys/fs/cgroup/job", _v2(limit=str(300 * MIB), used=250 * MIB, cache=200 * MIB)),
    })  # fmt: skip
    assert host_memory(root).cgroup_available_bytes == 250 * MIB


def test_version_2_throttling_counts_as_a_limit(tmp_path: Path) -> None:
    files = _v2(limit=str(300 * MIB), used=0, high=str(200 * MIB))
    root = _write(tmp_path, {
        "proc/self/mountinfo": V2_MOUNT.format(root="/"),
        "proc/self/cgroup": "0::/job\n",
        **_at("sys/fs/cgroup/job", files),
    })  # fmt: skip
    assert host_memory(root).cgroup_limit_bytes == 200 * MIB


def test_version_2_inside_a_container(tmp_path: Path) -> None:
    """The namespace hides the path: the container's own group is the root of the mount."""
    root = _write(tmp_path, {
        "proc/self/mountinfo": V2_MOUNT.format(root="/"),
        "proc/self/cgroup": "0::/\n",
        **_at("sys/fs/cgroup", _v2(limit=str(512 * MIB), used=12 * MIB)),
    })  # fmt: skip
    memory = host_memory(root)
    assert (memory.cgroup_limit_bytes, memory.cgroup_available_bytes) == (512 * MIB, 500 * MIB)


@pytest.mark.parametrize("own_path", ["/docker/abc", "/docker/abc/inner", "/elsewhere"])
def test_version_1_inside_a_container(tmp_path: Path, own_path: str) -> None:
    """Without a namespace the path is the host's, and the mount shows only a part of it."""
    root = _write(tmp_path, {
        "proc/self/mountinfo": V1_MOUNT.format(root="/docker/abc"),
        "proc/self/cgroup": f"9:cpu,cpuacct:/x\n4:memory:{own_path}\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{400 * MIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"cache 5\ntotal_inactive_file {50 * MIB}\n",
        "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "sys/fs/cgroup/memory/inner/memory.usage_in_bytes": "1\n",
    })  # fmt: skip
    memory = host_memory(root)
    assert (memory.cgroup_limit_bytes, memory.cgroup_available_bytes) == (400 * MIB, 350 * MIB)


def test_hybrid_machines_have_both(tmp_path: Path) -> None:
    root = _write(tmp_path, {
        "proc/self/mountinfo": V1_MOUNT.format(root="/") + V2_MOUNT.format(root="/"),
        "proc/self/cgroup": "4:memory:/a\n0::/\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{70 * MIB}\n",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{80 * MIB}\n",
    })  # fmt: skip
    memory = host_memory(root)
    assert (memory.cgroup_limit_bytes, memory.cgroup_available_bytes) == (70 * MIB, 0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/mountinfo": "garbage\n\n- - -\n", "proc/self/cgroup": "garbage\n"},
        {"proc/self/mountinfo": V2_MOUNT.format(root="/"), "proc/self/cgroup": "0::/gone\n"},
        {
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            "proc/self/cgroup": "0::/\n",
            **_at("sys/fs/cgroup", _v2(limit="max", used=1)),
        },
        {
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            "proc/self/cgroup": "0::/\n",
            **_at("sys/fs/cgroup", _v2(limit=str(2**60), used=1)),
        },
    ],
    ids=["no cgroups", "garbage", "group gone", "no limit", "limit beyond the machine"],
)
def test_without_a_limit_the_machine_counts(tmp_path: Path, files: dict[str, str]) -> None:
    memory = host_memory(_write(tmp_path, files))
    assert memory.cgroup_limit_bytes is None
    assert memory.usable_total_bytes == psutil.virtual_memory().total


def test_a_size_beyond_the_machine_is_refused() -> None:
    total = host_memory().usable_total_bytes
    check_fits_machine(total, name="budget")
    with pytest.raises(LargerThanMachine, match="is larger than the memory of") as caught:
        check_fits_machine(total + 1, name="--budget")
    assert caught.value.total_bytes == total
    assert caught.value.received_bytes == total + 1
    assert "Try: --budget " in str(caught.value)


def _make_group() -> Path | None:
    """A real memory cgroup below our own, where this machine lets us make one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers == "memory":
            folder = Path("/sys/fs/cgroup/memory") / path.lstrip("/") / f"memfit-{uuid.uuid4().hex}"
            limit = "memory.limit_in_bytes"
        elif number == "0":
            folder = Path("/sys/fs/cgroup") / path.lstrip("/") / f"memfit-{uuid.uuid4().hex}"
            limit = "memory.max"
        else:
            continue
        try:
            folder.mkdir()
            (folder / limit).write_text(str(200 * MIB))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        return folder
    return None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory cgroups exist on Linux only")
def test_a_real_cgroup() -> None:
    folder = _make_group()
    if folder is None:
        pytest.skip("this user may not create a memory cgroup here")
    code = (
        "import os, pathlib, sys; pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()));"
        "import memfit; memory = memfit.devices.host_memory();"
        "print(memory.cgroup_limit_bytes, memory.cgroup_available_bytes, memory.usable_total_bytes)"
    )
    try:
        result = subprocess.run(
            [sys.executable, "-c", code, os.fspath(folder)], capture_output=True, text=True, check=True
        )
    finally:
        folder.rmdir()
    limit, available, usable = map(int, result.stdout.split())
    assert limit == usable == 200 * MIB
    assert 0 < available < 200 * MIB
