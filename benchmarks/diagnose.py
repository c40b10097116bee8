"""How long `memfit diagnose` takes for a log of 2 GB, and how much memory.

Three logs are made in a temporary folder: a training whose allocator writes a dump again and again between
progress bars, the same without any line ends, and a driver that refuses for hours. Each is diagnosed by a
process of its own; the peak is its resident memory as the system counted it.

Targets: at most 60 seconds and 200 MB each.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import read_figures, write_results

SIZE_BYTES = 2 * 10**9
MOST_SECONDS, MOST_BYTES = 60.0, 200 * 10**6
_STAMP = "2031-02-03 04:05:06.{:06}: {} tensorflow/tsl/framework/bfc_allocator.cc:{}] "


def _training() -> str:
    """One epoch's bars, and a dump of some 400 chunks."""
    numbers = random.Random(8)
    bars = "".join(
        f"\r{step}/900 [=======>..............] - ETA: 41s - loss: {numbers.random():.4f}"
        for step in range(900)
    )
    sizes = [numbers.choice((1280, 65536, 2359296, 67108864, 134217728)) for _ in range(400)]
    request = _STAMP.format(1, "W", 485) + (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 300.00MiB (rounded to 314572800)"
        "requested by op model/conv2d_7/Conv2D\n"
    )
    chunks = "".join(
        _STAMP.format(number, "I", 1095)
        + f"{'Free ' if number % 9 == 0 else 'InUse'} at 7f00{number:08x} of size {size} next {number + 1}\n"
        for number, size in enumerate(sizes)
    )
    summary = "".join(
        _STAMP.format(7, "I", 1103) + f"{sizes.count(size)} Chunks of size {size} totalling 1.00GiB\n"
        for size in sorted(set(sizes))
    )
    stats = "Stats: \nLimit:   24000000000\nInUse:   23900000000\nMaxInUse: 23950000000\nNumAllocs: 91234\n"
    return f"Epoch 1/9\n{bars}\n{request}{chunks}{summary}{stats}\n"


def _driver() -> str:
    return "".join(
        f"2031-02-03 04:05:06.{number:06}: I tensorflow/stream_executor/cuda/cuda_driver.cc:741] failed to "
        f"allocate 2.00G ({2147483648 - number} bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
        for number in range(2000)
    )


LOGS: dict[str, Callable[[], str]] = {
    "dumps between progress bars": _training,
    "the same in a single line": lambda: _training().replace("\n", " "),
    "a driver that refuses": _driver,
}


def _write(path: Path, part: bytes) -> None:
    with path.open("wb") as file:
        for _ in range(SIZE_BYTES // len(part) + 1):
            file.write(part)


def _measure(path: Path) -> dict[str, Any]:
    """Diagnose a file in another process."""
    command = [sys.executable, "-m", "memfit", "diagnose", "--json", str(path)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "log_bytes": path.stat().st_size,
        "seconds": round(seconds, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": usage.ru_maxrss * 1024,
        "cause": json.loads(answer)["cause"],
        "reached": seconds <= MOST_SECONDS and usage.ru_maxrss * 1024 <= MOST_BYTES,
    }


def measure_logs() -> dict[str, Any]:
    """The figures of all logs."""
    figures = {}
    for name, make in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.log"
            _write(path, make().encode())
            figures[name] = _measure(path)
            print(name, figures[name], flush=True)
    return figures


def main() -> None:
    """Measure and write; what else the file holds stays."""
    figures = read_figures("diagnose")
    write_results("diagnose", {**figures, "logs": measure_logs()})


if __name__ == "__main__":
    main()
