"""Processes of their own for measurements, forked from one with TensorFlow imported but not started.

With oneDNN or without it, as TensorFlow has it by default; `TF_ENABLE_ONEDNN_OPTS` chooses.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "PYTHONPATH": str(Path(__file__).parent),
}


class ProcessEnded(Exception):
    """A process ended without an answer, as it does where TensorFlow's runtime gives up."""


def in_process(function: Callable[..., Any], *arguments: Any, limit_bytes: int | None = None) -> Any:
    """Call a module-level function in a new process, under a limit; whatever it raises is raised here."""
    os.environ.update(QUIET)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["memfit", "tensorflow", "keras"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments, limit_bytes))
    process.start()
    theirs.close()
    try:
        answer: Mapping[str, Any] = ours.recv()
    except EOFError as error:
        process.join()
        raise ProcessEnded(f"{function.__name__}: exit code {process.exitcode}") from error
    process.join()
    if "error" in answer:
        raise answer["error"]
    return answer["result"]


def _answer(
    answers: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], limit_bytes: int | None
) -> None:
    try:
        if limit_bytes is not None:
            import memfit

            memfit.limit(limit_bytes)
        answer = {"result": function(*arguments)}
    except Exception as error:  # noqa: BLE001 - it is raised again where it was asked for
        answer = {"error": RuntimeError(f"{type(error).__name__}: {str(error)[:2000]}")}
    answers.send(answer)
    answers.close()
    os._exit(0)  # TensorFlow's threads need not end
