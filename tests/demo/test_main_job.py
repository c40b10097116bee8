"""The demo for real, once, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from limited import run_limited
from memfit.core.errors import ChildFailed
from memfit.core.records import Demo
from memfit.core.units import parse_size
from memfit.demo.rows import train_plain
from memfit.demo.settings import BATCH_SIZE, BUDGET, EPOCHS, IMAGES
from memfit.machine import run_in_child

pytestmark = pytest.mark.real

DEMO = ["memfit", "demo", "--json"]


@pytest.mark.parametrize("world", ["0", "1"])
def test_plain_runs_out_memfit_trains_and_the_curves_agree(world: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": world, "MEMFIT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", *DEMO]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stderr == ""
    data: dict[str, Any] = json.loads(result.stdout)
    demo = Demo.from_dict(data)
    assert list(data)[:5] == ["schema", "kind", "budget_bytes", "batch_size", "rows"]
    plain, ours, unlimited = demo.rows
    assert [row.name for row in demo.rows] == ["plain", "memfit", "unlimited"]
    assert (plain.oom, ours.oom, unlimited.oom) == (True, False, False)
    assert plain.error is not None
    if world == "0":
        assert plain.error.shape is not None
        # A tensor of the step (a batch, or the scratch of a convolution), not the data set.
        assert plain.error.shape[0] <= BATCH_SIZE < IMAGES
        assert plain.error.op is not None
        assert "Iterator" not in plain.error.op
    assert ours.peak_bytes <= demo.budget_bytes < unlimited.peak_bytes
    assert ours.micro_batch_size < BATCH_SIZE == unlimited.micro_batch_size
    assert ours.ooms_survived == 0, "it was planned"
    assert len(ours.loss) == len(unlimited.loss) == EPOCHS
    for mine, theirs in zip(ours.loss, unlimited.loss, strict=True):
        assert abs(mine - theirs) <= 1e-4 * theirs


@pytest.mark.parametrize("world", ["0", "1"])
def test_plain_runs_out_even_a_tenth_above_the_budget(world: str) -> None:
    """Graph-mode peaks move by several per cent: the budget must be clear of them."""
    from memfit.demo.main_job import _ENVIRONMENT

    job = {"name": "plain", "images": IMAGES, "batch_size": BATCH_SIZE, "epochs": 1}
    environment = {**_ENVIRONMENT, "TF_ENABLE_ONEDNN_OPTS": world}
    limit_bytes = parse_size(BUDGET) * 11 // 10
    try:
        ran_out = run_in_child(train_plain, job, limit_bytes=limit_bytes, environment=environment)["oom"]
    except ChildFailed as error:  # which only kernels of oneDNN do
        ran_out = world == "1" and (error.child_exit_code or 0) < 0
    assert ran_out


def test_a_budget_that_nothing_fits_in() -> None:
    command = [sys.executable, "-m", "memfit", "demo", "--json", "--budget", "2MiB"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("DoesNotFit: ")
    assert "Try: memfit demo --budget 4MiB" in result.stderr


def _children_at_work(parent: int) -> list[psutil.Process]:
    """The children of a process, as soon as one of them has loaded TensorFlow."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = psutil.Process(parent).children()
        if any(child.memory_info().rss > 200 << 20 for child in children):
            return children
        time.sleep(0.05)
    raise AssertionError("no child came to work")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_ctrl_c_in_the_middle_leaves_no_process(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "memfit", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    children = _children_at_work(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (code, "")
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def _doctor() -> dict[str, Any]:
    from memfit.api import examine

    return examine().to_dict()


def test_doctor_under_a_limit() -> None:
    found = run_limited(_doctor, "300MiB")
    assert found["allocator"] == "BFC on the CPU, limit 300 MiB"
    assert found["budget"] == {
        "budget_bytes": 300 * 2**20, "source": "limit", "limit_bytes": 300 * 2**20, "reserve_bytes": 0,
    }  # fmt: skip
    assert found["devices"] == ["/device:CPU:0"]
    assert found["warnings"] == []
