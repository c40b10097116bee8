"""Scripts under `memfit run`, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from limited import QUIET


def run_script(
    folder: Path,
    script: str,
    *arguments: str,
    budget: str,
    onednn: str = QUIET["TF_ENABLE_ONEDNN_OPTS"],
    code: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Run a script to its end, whose code has to be this one; its standard error, and the report.

    Its standard output is in the file `output`.
    """
    (folder / "train.py").write_text(script)
    command = ["-m", "memfit", "run", "--budget", budget, "--report", "report.json", "train.py", *arguments]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **QUIET, "TF_ENABLE_ONEDNN_OPTS": onednn, "MEMFIT_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "output").write_text(done.stdout)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stderr, json.loads((folder / "report.json").read_text())
