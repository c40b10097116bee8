"""How many modules of memfit one call passes through, and whether folders are entered in their order.

Two ways are followed with `sys.setprofile`, in processes of their own: `memfit.fit` with a budget that the
batch does not fit in, and the child of `memfit run`. A module counts when one of its functions runs; what
runs while modules are imported does not count. A folder is entered out of turn when the first call into it
comes from a folder that stands below it in import-linter's order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from _results import write_results

import memfit

ROOT = Path(__file__).parents[1]
ALWAYS_OPEN = ("core", "machine", "model")  # every folder may ask them at any time
ALLOWED = {"memfit.fit": 60, "memfit run": 70}

MODEL = """
import keras, numpy as np
conv = lambda filters: keras.layers.Conv2D(filters, 3, padding="same", activation="relu")
model = keras.Sequential([keras.Input((96, 96, 3)), conv(32), conv(32), conv(32), conv(3)])
model.compile("adam", "mse")
x = np.random.default_rng(0).random((128, 96, 96, 3)).astype("float32")
"""
FIT = (
    "import memfit; memfit.limit('400MiB')"
    + MODEL
    + "memfit.fit(model, x, x, batch_size=64, budget='400MiB', epochs=1, verbose=0)"
)
SCRIPT = MODEL + "model.fit(x, x, batch_size=64, epochs=1, verbose=0)"

# `sitecustomize` is imported before anything else; the profile is written when the interpreter ends.
PROFILE = """
import atexit, json, os, sys, threading

entered, calls = {}, []
root = os.environ["PASSAGE_ROOT"] + os.sep
RUNS_FUNCTIONS = 1  # the flag of code that is neither a module's nor a class's body

def module_of(frame):
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return frame

def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(root) or not code.co_flags & RUNS_FUNCTIONS:
        return
    caller = module_of(frame.f_back)
    if caller is not None and not caller.f_code.co_flags & RUNS_FUNCTIONS:
        return  # while a module is imported
    if code.co_filename not in entered:
        entered[code.co_filename] = None if caller is None else caller.f_code.co_filename

def write():
    sys.setprofile(None)
    with open(os.environ["PASSAGE_OUTPUT"], "w") as file:
        json.dump(entered, file)

if os.environ["PASSAGE_WHOSE"] in " ".join(sys.orig_argv):
    atexit.register(write)
    threading.setprofile(note)
    sys.setprofile(note)
"""


def main() -> None:
    """Follow both ways and write what they pass; exits with 1 where one is longer than allowed."""
    figures = {"memfit.fit": _follow_fit(), "memfit run": _follow_run()}
    write_results("passage", figures)
    too_long = {name for name, found in figures.items() if found["count"] > ALLOWED[name]}
    out_of_turn = [folder for found in figures.values() for folder in found["out_of_turn"]]
    sys.exit(1 if too_long or out_of_turn else 0)


def _follow_fit() -> dict[str, Any]:
    return _follow([sys.executable, "-c", FIT], whose="memfit.fit(")


def _follow_run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "memfit", "run", "--budget", "400MiB", os.fspath(script)]
        return _follow(command, whose="memfit.running.child")


def _follow(command: list[str], *, whose: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(PROFILE)
        output = Path(folder) / "entered.json"
        environment = {
            **os.environ,
            "MEMFIT_HOME": folder,  # nothing is planned beforehand
            "PASSAGE_OUTPUT": os.fspath(output),
            "PASSAGE_ROOT": os.fspath(Path(memfit.__file__).parent),
            "PASSAGE_WHOSE": whose,
            "PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return _summary(json.loads(output.read_text()))


def _summary(entered: dict[str, str | None]) -> dict[str, Any]:
    order = _order()
    first: dict[str, str] = {}
    for path, caller in entered.items():
        first.setdefault(_folder(path), "" if caller is None else _folder(caller))
    places = {folder: place for place, folder in enumerate(order)}
    return {
        "count": len(entered),
        "modules": [_module(path) for path in entered],
        "folders": list(first),
        "out_of_turn": [
            f"{folder} from {caller}"
            for folder, caller in first.items()
            if caller and folder not in ALWAYS_OPEN and places.get(folder, -1) < places.get(caller, -1)
        ],
    }


def _order() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers: list[str] = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [name.strip() for layer in layers for name in layer.split(":")]


def _module(path: str) -> str:
    return Path(path).relative_to(Path(memfit.__file__).parent).with_suffix("").as_posix()


def _folder(path: str) -> str:
    return _module(path).partition("/")[0]


if __name__ == "__main__":
    main()
