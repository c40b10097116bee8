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
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from memfit.core.errors import ChildFailed

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
    return ChildProcess(environment).run(function, arguments, limit_bytes=limit_bytes, on_event=on_event)


class ChildProcess:
    """A Python process that waits for one job, and imports what that needs meanwhile."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, imports: Sequence[str] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed where the process ends
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memfit.machine.child_main", *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
        )
        self.kill = weakref.finalize(self, _kill, self._process, self._log)

    def run(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        limit_bytes: int | None = None,
        on_event: Emit | None = None,
    ) -> Any:
        """Call a function there, as `run_in_child` does; the process ends with it."""
        job = {
            "module": function.__module__,
            "file": inspect.getfile(function),
            "function": function.__qualname__,
            "arguments": dict(arguments or {}),
            "limit_bytes": limit_bytes,
        }
        process, name = self._process, function.__qualname__
        try:
            answer = _converse(process, job, on_event or (lambda event: None))
            if answer is None:
                raise ChildFailed(name, exit_code=process.wait(), last_lines=_last_lines(self._log))
        finally:
            _end(process)
            self.kill()
        if "error" in answer:
            raise ChildFailed(name, exit_code=None, last_lines=answer["error"].splitlines()[-_LAST_LINES:])
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


def _kill(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """End a child that is not needed any more, whatever it does."""
    process.kill()
    _end(process)
    log.close()


def _last_lines(log: IO[bytes]) -> list[str]:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 20_000))
    return log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
