"""How long the command line takes to say something, against Python alone and against TensorFlow's import.

The commands alternate, and each figure is a median, so that a busy moment hits all of them alike.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from _results import write_results

COMMANDS = {
    "python": ["-c", "pass"],
    "import memfit": ["-c", "import memfit"],
    "memfit --help": ["-m", "memfit", "--help"],
    "import tensorflow": ["-c", "import tensorflow"],
}
ROUNDS = 7


def _seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure all commands in turn and write the medians and their ratios."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(_seconds(arguments))
    medians = {name: statistics.median(values) for name, values in times.items()}
    write_results(
        "startup",
        {
            "rounds": ROUNDS,
            "median_seconds": {name: round(value, 4) for name, value in medians.items()},
            "ratio_to_python": {
                name: round(value / medians["python"], 2)
                for name, value in medians.items()
                if name != "python"
            },
        },
    )


if __name__ == "__main__":
    main()
