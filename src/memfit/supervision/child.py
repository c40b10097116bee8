"""The child of `memfit run`: `python -m memfit.supervision.child` runs the script that its parent names."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from memfit.supervision.guarding import guard_everything
from memfit.supervision.jobs import Job
from memfit.supervision.scripts import run_script

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LOOK_SECONDS = 1.0


def main() -> None:
    """Take the job out of the environment and do it."""
    job = Job.out_of_environment()
    _end_with_parent(job.parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the parent had them blocked
    if job.is_guarded:
        guard_everything(job)
    run_script(job)


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


if __name__ == "__main__":
    main()
