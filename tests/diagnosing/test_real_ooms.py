"""Real errors, made here under real limits: each gets its known cause, op, shape and line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest

import memfit
from diagnosing.oom_scripts import SCRIPTS, Script
from limited import QUIET, run_limited
from memfit.core.records import Diagnosis

LOUD = {"TF_CPP_MIN_LOG_LEVEL": "0"}  # else there is no dump


def _run(path: str) -> dict[str, Any]:
    """What a script leaves on standard error, and what its error alone says."""
    alone: dict[str, Any] = {}
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__"})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is diagnosed
            traceback.print_exc()
            alone = memfit.diagnose(error).to_dict()
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        return {"log": log.read().decode(errors="replace"), "alone": alone}


def _check(found: Diagnosis, script: Script) -> None:
    assert found.cause == script.cause, found.summary
    if script.cause == "not_an_oom":
        return
    assert found.error is not None
    assert found.source == (None if script.line is None else f"train.py:{script.line}")
    if script.op is not None:
        assert script.op in (found.error.op or "")
    if script.shape is not None:
        assert found.error.shape == script.shape


@pytest.mark.real
@pytest.mark.parametrize("name", SCRIPTS)
def test_real_logs(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    path = tmp_path / "train.py"
    path.write_text(script.code)
    answer = run_limited(_run, script.limit, environment=LOUD, path=str(path))
    print(answer["log"][-3000:])
    _check(memfit.diagnose(answer["log"]), script)
    alone = Diagnosis.from_dict(answer["alone"])
    assert alone.cause != "not_an_oom" or script.cause == "not_an_oom"
    assert alone.source == (None if script.line is None else f"train.py:{script.line}")


@pytest.mark.real
def test_an_array_that_crashes_tensorflow(tmp_path: Path) -> None:
    """There, TensorFlow ends by a signal; the dump and Python's last words are all there is."""
    path = tmp_path / "train.py"
    path.write_text(
        "import numpy as np, tensorflow as tf\n\nx = tf.constant(np.ones((40_000_000,), 'float32'))\n"
    )
    bfc = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "60", "PYTHONFAULTHANDLER": "1"}
    ended = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **QUIET, **LOUD, **bfc},
        capture_output=True,
        check=False,
    )
    found = memfit.diagnose(ended.stderr)
    assert (found.cause, found.source) == ("data_on_device", "train.py:3")
    assert found.error is not None
    assert found.error.requested_bytes == 160_000_000


GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(not os.access(GROUPS, os.W_OK), reason="memory cgroups v1 that may be written to")
def test_a_kill_by_the_kernel(tmp_path: Path) -> None:
    group = GROUPS / f"memfit-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))
        script = tmp_path / "train.py"
        script.write_text("print('Epoch 1/3', flush=True)\nx = b'1' * 2**29\n")
        shell = f"echo $$ > {group}/cgroup.procs; '{sys.executable}' {script}; echo ended with code $?"
        ended = subprocess.run(["bash", "-c", shell], capture_output=True, check=False)
    finally:
        group.rmdir()
    found = memfit.diagnose(ended.stdout + ended.stderr)
    assert found.cause == "host_memory", ended
