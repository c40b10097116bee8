"""Run a function in a process of its own, under a limit of its own.

TensorFlow's allocator is set once for a process, so whatever wants another limit (the demo's rows, the
tests, a probe) runs in a child. Job and result travel as JSON; the child ends with its parent.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from memfit.errors import ChildFailed

Emit = Callable[[Mapping[str, Any]], None]

_LAST_LINES = 12
_GRACE_SECONDS = 5.0


def run_in_child(
    function: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    limit_bytes: int | None = None,
    on_event: Emit | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call a module-level function in a new Python process and return its result.

    With `limit_bytes` the child limits its device first. A function with a parameter `emit` is given a
    callable that sends a JSON object to `on_event` here, at once. Arguments, events and result are JSON.
    """
    job = {
        "module": function.__module__,
        "file": inspect.getfile(function),
        "function": function.__qualname__,
        "arguments": dict(arguments or {}),
        "limit_bytes": limit_bytes,
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memfit.devices.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
        try:
            answer = _converse(process, job, on_event or (lambda event: None))
            if answer is None:
                raise ChildFailed(
                    function.__qualname__, exit_code=process.wait(), last_lines=_last_lines(log)
                )
        finally:
            _end(process)
    if "error" in answer:
        lines = answer["error"].splitlines()[-_LAST_LINES:]
        raise ChildFailed(function.__qualname__, exit_code=None, last_lines=lines)
    return answer["result"]


def _converse(process: subprocess.Popen[bytes], job: dict[str, Any], on_event: Emit) -> dict[str, Any] | None:
    """Send the job, pass events on, return the line that holds the result or the error."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    for line in process.stdout:
        if not line.endswith(b"\n"):
            return None  # the child died while it wrote
        message: dict[str, Any] = json.loads(line)
        if "event" not in message:
            return message
        on_event(message["event"])
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the child finish by closing its standard input; insist if it does not."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    for insist in (process.terminate, process.kill):
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            insist()
    process.wait()


def _last_lines(log: IO[bytes]) -> list[str]:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 20_000))
    return log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
