"""Whose code a file is: the user's in a folder of any name, a package's where packages are installed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import memfit
from memfit.diagnosing.logs.installed_paths import is_installed_here, looks_installed
from memfit.diagnosing.logs.read_facts import read_facts

USERS = [
    "train.py",
    "/home/me/train.py",
    "/home/me/memfit/train.py",
    "/home/me/memfit/models/train.py",
    "/home/me/src/memfit/train.py",
    "/home/me/memfit/examples/first.py",
    "/home/me/src/memfit/examples/first.py",
    "/home/me/memfit/tests/running/test_resume.py",
    "/home/me/keras/train.py",
    "/home/me/keras/src/train.py",
    "/home/me/tf_keras/train.py",
    "/home/me/tensorflow/experiments/train.py",
    "/home/me/tensorflow/python/train.py",
    "/home/me/lib/asyncio/train.py",
    "/home/me/lib/python/train.py",
    "/home/me/my-site-packages-study/train.py",
    r"C:\Users\me\keras\train.py",
    r"C:\Users\me\memfit\examples\first.py",
    "<stdin>",
    "<ipython-input-3-0a1b2c3d4e5f>",
    "In[4]",
]

INSTALLED = [
    "/opt/env/lib/python3.12/site-packages/keras/src/utils/traceback_utils.py",
    "/opt/lib/python3.8/site-packages/keras/engine/training.py",
    "/usr/lib/python3/dist-packages/numpy/core/numeric.py",
    "/usr/lib/python3.12/threading.py",
    "/usr/lib64/python3.9/contextlib.py",
    "/opt/pypy/lib/pypy3.10/runpy.py",
    "/opt/packages/keras/src/layers/core/dense.py",
    "/opt/packages/tf_keras/src/engine/training.py",
    "/opt/packages/tensorflow/python/eager/execute.py",
    "/opt/packages/tensorflow_core/python/client/session.py",
    "/opt/packages/jax/_src/api.py",
    "/opt/packages/memfit/guarding/guard.py",
    "/opt/packages/memfit/runs/guards.py",
    "/opt/packages/memfit/data/stream/source.py",
    "/opt/packages/memfit/api.py",
    "/home/me/memfit/src/memfit/api.py",
    "/home/me/memfit/src/memfit/data/manifest.py",
    "/home/me/memfit/src/memfit/model/calls.py",
    r"C:\Python312\Lib\threading.py",
    r"C:\Users\me\anaconda3\lib\concurrent\futures\thread.py",
    r"C:\Users\me\env\Lib\site-packages\keras\src\layers\layer.py",
    "<frozen runpy>",
    "<string>",
    "<__array_function__ internals>",
]


@pytest.mark.parametrize("path", USERS)
def test_a_folder_that_is_called_like_a_package_is_the_users(path: str) -> None:
    assert not looks_installed(path)


@pytest.mark.parametrize("path", INSTALLED)
def test_a_path_of_a_package_is_not_the_users(path: str) -> None:
    assert looks_installed(path)


def test_every_module_of_memfit_is_known_by_its_path() -> None:
    package = Path(memfit.__file__).parent
    modules = [path.relative_to(package.parent) for path in package.rglob("*.py")]
    public = {Path("memfit", name) for name in ("devices.py", "errors.py", "records.py")}  # they only import
    missed = [str(one) for one in modules if not looks_installed(f"/home/me/clone/src/{one.as_posix()}")]
    assert not set(map(Path, missed)) - public


def test_here_the_places_of_packages_decide(tmp_path: Path) -> None:
    assert is_installed_here(np.__file__)
    assert is_installed_here(memfit.__file__)
    assert is_installed_here(contextlib.__file__)
    assert is_installed_here("<frozen runpy>")
    assert not is_installed_here("<stdin>")
    assert not is_installed_here(__file__)
    assert not is_installed_here(str(tmp_path / "keras" / "src" / "layers" / "mine.py"))


@pytest.mark.parametrize("project", ["memfit", "keras", "tensorflow/experiments", "memfit/examples"])
def test_the_line_of_a_log_is_the_innermost_of_the_user(project: str) -> None:
    log = (
        "Traceback (most recent call last):\n"
        f'  File "/home/me/{project}/train.py", line 7, in <module>\n'
        "    model.fit(x, y)\n"
        '  File "/opt/packages/memfit/guarding/guard.py", line 80, in call\n'
        "    return step()\n"
        '  File "/opt/packages/keras/src/trainers/trainer.py", line 3, in fit\n'
        "    return run()\n"
        "MemoryError\n"
    )
    assert memfit.diagnose(log).source == "train.py:7"
    (traceback,) = read_facts([log.encode()]).tracebacks
    assert [frame.is_users for frame in traceback.frames] == [True, False, False]
