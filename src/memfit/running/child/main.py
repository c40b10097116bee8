"""The child of `memfit run`: `python -m memfit.running.child.main` runs the script that its parent names.

The script is run as Python itself would run it: its name, its arguments, its folder, its errors.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from memfit.private.patching import AfterImport
from memfit.running.checkpoints.store import ChildContext
from memfit.running.child import patches as keras_patches
from memfit.running.child.monitor import Monitor
from memfit.running.child.patches import Patches, PlanningOptions, seed_everything
from memfit.running.journal.events import LimitEvent, ShortfallEvent, UnguardedEvent
from memfit.running.journal.run_folder import Job, tell

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LOOK_SECONDS = 1.0


def main() -> None:
    """Take the job out of the environment and do it."""
    job = Job.out_of_environment()
    _end_with_parent(job.parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the parent had them blocked
    patches = guard_everything(job) if job.is_guarded else None
    try:
        run_script(job)
    except SystemExit as leaving:
        if leaving.code:
            raise
    if patches is not None:
        patches.finish()


def _note_shortfall(job: Job, error: BaseException) -> None:
    """Tell the parent that a training does not fit: other kernels may need less."""
    from memfit.core.errors import DoesNotFit
    from memfit.machine import is_oom

    if not job.is_guarded:
        return
    if isinstance(error, DoesNotFit):
        ChildContext.of(job).journal.write(ShortfallEvent(error.onednn))
    elif is_oom(error):
        _name_the_line(job, error)


def _name_the_line(job: Job, error: BaseException) -> None:
    """Say which line of the script ran out where no guard stands, maybe before its loop came to an update."""
    from memfit.core.user_code import is_library, shown_line

    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == keras_patches.__file__ for frame in frames):
        return  # in a method of Keras, which has its own words
    if own := [frame for frame in frames if not is_library(frame.filename)]:
        line = shown_line(own[-1].filename, own[-1].lineno or 0)
        reason = f"{line} ran out of memory outside of fit; memfit.step(...) guards loops of one's own"
        tell(f"Not guarded: {reason}.")
        ChildContext.of(job).journal.write(UnguardedEvent(reason))


def _end_with_parent(parent: int) -> None:
    """No orphans: the kernel kills this process when its parent ends, or else it looks for it itself."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_look_for, args=(parent,), daemon=True).start()


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def guard_everything(job: Job) -> Patches:
    """Limit the device when TensorFlow comes, and put Keras' methods behind the guard when Keras does."""
    context = ChildContext.of(job)
    patches = Patches(PlanningOptions(job.budget_bytes, job.allow, plans=job.plans), context)
    seed_everything(job.seed)
    AfterImport("keras", patches.install).install()
    AfterImport("tf_keras", patches.warn_of_keras_2).install()
    AfterImport("tensorflow", lambda: _limit(context, job.budget_bytes)).install()
    Monitor(context).start()
    return patches


def _limit(context: ChildContext, budget_bytes: int | None) -> None:
    from memfit.core.errors import MemfitError
    from memfit.machine import find_budget, limit

    try:
        limit_bytes = limit(budget_bytes or find_budget(None).budget_bytes)
        context.journal.write(LimitEvent(limit_bytes))
    except MemfitError as error:
        tell(f"No limit was set: {error}")
        return
    from memfit.guarding.arrays_on_host import keep_large_arrays_on_host

    keep_large_arrays_on_host()


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
        _note_shortfall(job, error)
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


def _without_ours(frames: TracebackType | None, here: Path) -> TracebackType | None:
    """A traceback that begins where the script does."""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if Path(file).parent != here and not file.startswith("<frozen"):
            return frames
        frames = frames.tb_next
    return None


def _end_with(error: BaseException, frames: TracebackType | None) -> NoReturn:
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


if __name__ == "__main__":
    main()
