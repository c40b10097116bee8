"""The child's side of `run_in_child`: `python -m` this module reads a job, answers in JSON lines."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO


def main(imports: Sequence[str] = ()) -> None:
    """Read one job from standard input, run it, send events and the result to standard output.

    Before there is a job, import what it will need.
    """
    # What the job prints must not mix with the answer: keep the pipe, point standard output elsewhere.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in imports:
        importlib.import_module(name)
    job = json.loads(_read_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        line = json.dumps({"result": _run(job, channel)})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever ended the job belongs into the answer
        line = json.dumps({"error": "".join(traceback.format_exception(error))})
    channel.write(line + "\n")


def _read_line() -> bytes:
    # Byte by byte from the descriptor: a buffered reader would be locked by the watching thread at exit.
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _end_with_parent() -> None:
    """No orphans: the parent holds our standard input open for as long as it wants us."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def _run(job: dict[str, Any], channel: TextIO) -> Any:
    if job["limit_bytes"] is not None:
        from memfit.machine.limits import limit

        limit(job["limit_bytes"])
    function: Any = _load_module(job["module"], Path(job["file"]))
    for name in job["function"].split("."):
        function = getattr(function, name)
    arguments = dict(job["arguments"])
    if "emit" in inspect.signature(function).parameters:
        arguments["emit"] = lambda event: _emit(event, channel)
    return function(**arguments)


def _emit(event: Mapping[str, Any], channel: TextIO) -> None:
    channel.write(json.dumps({"event": event}) + "\n")


def _load_module(name: str, file: Path) -> ModuleType:
    """A module that can be found by its name, anything else (a test, a script) from its file."""
    if name == "__main__":
        name = "__memfit_main__"  # so that the script's own main part does not run again
    elif _is_importable(name, file):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_importable(name: str, file: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file.resolve()


if __name__ == "__main__":
    main(sys.argv[1:])
