"""What can be diagnosed: exceptions, texts, files, runs; and what cannot."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import memfit
from diagnosing.written_logs import ACTIVATIONS
from memfit.core.errors import CannotDiagnose, CannotRead, DoesNotFit
from memfit.core.records import Budget, OutOfMemory, Run, SurvivedOOM


def test_an_exception_with_its_line() -> None:
    def load() -> None:
        np.ones((2**45,))

    with pytest.raises(MemoryError) as caught:
        load()
    found = memfit.diagnose(caught.value)
    assert found.cause == "host_memory"
    assert found.source == f"{Path(__file__).name}:{load.__code__.co_firstlineno + 1}"
    assert found.error is not None
    assert found.error.shape == (2**45,)


@pytest.mark.parametrize("folder", ["memfit", "keras/src", "tensorflow/python"])
def test_an_exception_in_a_project_that_is_called_like_a_package(folder: str, tmp_path: Path) -> None:
    script = tmp_path / folder / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("def load():\n    raise MemoryError\n")
    names = runpy.run_path(str(script))
    with pytest.raises(MemoryError) as caught:
        names["load"]()
    assert memfit.diagnose(caught.value).source == "train.py:2"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("shapes differ"), "not_an_oom"),
        (KeyboardInterrupt(), "not_an_oom"),
        (MemoryError(), "host_memory"),
        (DoesNotFit("nothing fits.", suggestion="more", limit_bytes=2**20), "activations"),
    ],
)
def test_exceptions(error: BaseException, cause: str) -> None:
    assert memfit.diagnose(error).cause == cause


def test_files_by_path_and_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(ACTIVATIONS)
    assert memfit.diagnose(path) == memfit.diagnose(str(path)) == memfit.diagnose(ACTIVATIONS)
    assert memfit.diagnose(ACTIVATIONS.encode()) == memfit.diagnose(ACTIVATIONS)


def test_a_run() -> None:
    error = OutOfMemory(
        "OOM when allocating tensor with shape[64,32,32,16] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator bfc_cpu_allocator_for_gpu",
        op="conv/Conv2D",
    )
    oom = SurvivedOOM(3, "gradients", 64, 32, 10.1, error)
    found = memfit.diagnose(Run(Budget(2**30, "limit", 2**30), ooms=(oom,)))
    assert found.cause == "activations"
    assert found.error is not None
    assert (found.error.shape, found.error.op) == ((64, 32, 32, 16), "conv/Conv2D")


def test_a_run_that_never_ran_out() -> None:
    assert memfit.diagnose(Run(Budget(2**30, "limit", 2**30))).cause == "not_an_oom"


@pytest.mark.parametrize("name", ["missing.log", "folder/missing.txt"])
def test_files_that_are_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match="No such file"):
        memfit.diagnose(tmp_path / name)
    with pytest.raises(CannotRead, match="No such file"):
        memfit.diagnose(name)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match="it is a folder"):
        memfit.diagnose(tmp_path)


@pytest.mark.parametrize("what", [None, 3, ["log"], {"log": 1}])
def test_what_cannot_be_diagnosed(what: object) -> None:
    with pytest.raises(CannotDiagnose, match=f"type {type(what).__name__}"):
        memfit.diagnose(what)  # type: ignore[arg-type]


def test_binary_files_are_said_to_be_so(tmp_path: Path) -> None:
    found = memfit.diagnose(bytes(range(256)) * 100)
    assert found.cause == "unknown"
    assert "not text" in found.summary


def test_what_memfit_could_not_make_fit_is_not_advised_to_run_under_memfit() -> None:
    plainly = memfit.diagnose(ACTIVATIONS)
    assert any("memfit run " in (one.paste or "") for one in plainly.advice)
    guarded = memfit.diagnose(
        f"{ACTIVATIONS}\nmemfit.errors.DoesNotFit: a step on one sample does not fit.\n"
    )
    assert guarded.advice[0].what.startswith("Give it more")
    assert not [one for one in guarded.advice[1:] if "memfit run " in (one.paste or "")]
    assert not [one for one in guarded.advice if "memfit.fit(" in (one.paste or "")]
