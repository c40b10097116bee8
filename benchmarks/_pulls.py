"""How fast batches can be pulled from a pipeline, how soon the first comes, and how much memory it takes.

Nothing but Python is needed here, so that libraries in environments of their own are measured alike.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

WARMING_BATCHES = 30
WARMING_SECONDS = 3.0  # at most, for those that are slow
LOOK_SECONDS = 0.005

Batches = Iterable[Any]  # a new epoch each time it is iterated over
Use = Callable[[Any], Any]


def anonymous_bytes() -> int:
    """What this process holds of its own; pages of mapped files are not among it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not say how much memory is anonymous")


class Peak:
    """The most that this process holds over what it held at first, looked at every few milliseconds."""

    def __init__(self) -> None:
        gc.collect()
        self._base_bytes = anonymous_bytes()
        self.most_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.most_bytes = max(self.most_bytes, anonymous_bytes() - self._base_bytes)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def pull(open_batches: Callable[[], Batches], seconds: float, use: Use | None = None) -> dict[str, Any]:
    """Build a pipeline, pull batches for some time, and say what came of it."""
    with Peak() as peak:
        began = time.perf_counter()
        batches = _epochs(open_batches())
        first = next(batches)
        first_seconds = time.perf_counter() - began
        kind, shape = _dtype(first), list(first.shape)
        del first
        for _ in _within(batches, WARMING_SECONDS, use, WARMING_BATCHES):
            pass
        began, processors = time.perf_counter(), time.process_time()
        images = sum(_within(batches, seconds, use))
        took, processors = time.perf_counter() - began, time.process_time() - processors
    return {
        "images_per_second": round(images / took, 1),
        "images_per_processor_second": round(images / processors, 1),
        "peak_bytes": peak.most_bytes,
        "first_batch_seconds": round(first_seconds, 4),
        "dtype": kind,
        "shape": shape,
    }


def _epochs(batches: Batches) -> Iterator[Any]:
    """Epoch after epoch, each with an iterator of its own, as `model.fit` has them."""
    while True:
        yield from batches


def _within(
    batches: Iterator[Any], seconds: float, use: Use | None, most: int | None = None
) -> Iterator[int]:
    """The sizes of the batches that come within some time."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end and count != most:
        batch = next(batches)
        if use is not None:
            use(batch)
        count += 1
        yield int(batch.shape[0])


def _dtype(batch: Any) -> str:
    return str(getattr(batch.dtype, "name", batch.dtype))
