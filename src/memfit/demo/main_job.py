"""Three processes, three ways of training the same model: plain, memfit, unlimited."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from memfit.core.errors import ChildFailed, DoesNotFit
from memfit.core.records import Demo, DemoRow, OutOfMemory
from memfit.demo.rows import train_guarded, train_plain
from memfit.demo.settings import BATCH_SIZE, EPOCHS, IMAGES
from memfit.machine import host_memory, run_in_child

Progress = Callable[[str, Mapping[str, Any]], None]

# The demo shows a CPU also on a machine with a GPU: only there has its budget been measured.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}


def run_demo(budget_bytes: int, *, epochs: int = EPOCHS, on_progress: Progress | None = None) -> Demo:
    """Train the demo's model three ways and return what each needed and reached."""
    began = time.perf_counter()
    unlimited_bytes = max(budget_bytes, host_memory().usable_total_bytes * 3 // 4)
    job = {"images": IMAGES, "batch_size": BATCH_SIZE, "epochs": epochs}
    rows = [
        _run_row(name, function, job, limit_bytes, on_progress)
        for name, function, limit_bytes in (
            ("plain", train_plain, budget_bytes),
            ("memfit", train_guarded, budget_bytes),
            ("unlimited", train_plain, unlimited_bytes),
        )
    ]
    return Demo(
        budget_bytes=budget_bytes,
        batch_size=BATCH_SIZE,
        rows=tuple(rows),
        epochs=epochs,
        images=IMAGES,
        device="CPU:0",
        seconds=time.perf_counter() - began,
    )


def _crashed(name: str, batch_size: int, limit_bytes: int, error: ChildFailed) -> dict[str, Any]:
    """The row of plain Keras where TensorFlow ended the process, as kernels of oneDNN do."""
    if name != "plain" or error.child_exit_code is None or error.child_exit_code >= 0:
        raise error
    oom = OutOfMemory(f"TensorFlow ended the process with signal {-error.child_exit_code}")
    return DemoRow("plain", True, limit_bytes, batch_size, (), 0.0, error=oom).to_dict()


def _run_row(
    name: str,
    function: Callable[..., Any],
    job: Mapping[str, Any],
    limit_bytes: int,
    on_progress: Progress | None,
) -> DemoRow:
    tell = on_progress or (lambda name, event: None)
    tell(name, {"begin": True, "steps": job["epochs"] * -(-job["images"] // job["batch_size"])})
    try:
        result = run_in_child(
            function,
            {"name": name, **job},
            limit_bytes=limit_bytes,
            on_event=lambda event: tell(name, event),
            environment=_ENVIRONMENT,
        )
    except ChildFailed as error:
        result = _crashed(name, job["batch_size"], limit_bytes, error)
    if "does_not_fit" in result:
        fact, *details = result["does_not_fit"].split("\n  Try: ")[0].split("\n  ")
        raise DoesNotFit(
            fact,
            *details,
            suggestion=f"memfit demo --budget {2 * limit_bytes >> 20}MiB",
            limit_bytes=result["limit_bytes"],
        )
    row = DemoRow.from_dict(result)
    tell(name, {"end": True, "oom": row.oom})
    return row
