"""The whole fault matrix: a real out-of-memory error in every phase, in the first and in a later step.

Each error waits ten seconds inside TensorFlow. What went through is written down at once, and a run that was
interrupted goes on where it was; `--again` begins anew.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _results import write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from guarding.faults import MATRIX, problems

PROGRESS = Path(__file__).parent / "results" / "faults.partial.json"
WORKERS = 3


def main(*, again: bool) -> int:
    """Run what is left of the matrix; 1 when a fault left something wrong."""
    done: dict[str, Any] = {}
    if PROGRESS.exists() and not again:
        done = json.loads(PROGRESS.read_text())
    left = [fault for fault in MATRIX if " / ".join(fault) not in done]
    print(f"{len(done)} of {len(MATRIX)} done before", file=sys.stderr)
    with ThreadPoolExecutor(WORKERS) as pool:
        for fault, found in zip(left, pool.map(lambda fault: problems(*fault), left), strict=True):
            done[" / ".join(fault)] = found
            PROGRESS.parent.mkdir(exist_ok=True)
            PROGRESS.write_text(json.dumps(done, indent=2) + "\n")
            print(f"{' / '.join(fault)}: {found or 'right'}", file=sys.stderr)
    wrong = {name: found for name, found in done.items() if found}
    write_results("faults", {"faults": len(done), "right": len(done) - len(wrong), "wrong": wrong})
    PROGRESS.unlink()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(again="--again" in sys.argv[1:]))
