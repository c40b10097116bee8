"""A script run as Python itself would run it: its name, its arguments, its folder, its errors."""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from memfit.supervision.jobs import Job


def run_script(job: Job) -> None:
    """Run a script or a module as the main program; what it raises is shown as ever, and ends the process."""
    here = Path(__file__).resolve().parent
    try:
        if job.is_module:
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = [job.script, *job.arguments]
            runpy.run_module(job.script, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [job.script, *job.arguments]
            _run_file(job.script)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as Python does at the very top
        _end_with(error, _without_ours(error.__traceback__, here))


def _run_file(script: str) -> None:
    path = Path.cwd() / script
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        runpy.run_path(script, run_name="__main__")
        return
    sys.path.insert(0, str(path.resolve().parent))
    main = ModuleType("__main__")
    main.__file__ = str(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _without_ours(traceback: TracebackType | None, here: Path) -> TracebackType | None:
    """A traceback that begins where the script does."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if Path(file).parent != here and not file.startswith("<frozen"):
            return traceback
        traceback = traceback.tb_next
    return None


def _end_with(error: BaseException, traceback: TracebackType | None) -> NoReturn:
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)
