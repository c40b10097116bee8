"""Processes with TensorFlow already imported, from which each test forks one of its own.

Importing TensorFlow takes seconds, starting its runtime does not: so a process imports it once, never starts
the runtime, and forks. A fork sets its own limit and has an allocator of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

from memfit.core.errors import ChildFailed

_SECONDS = 600  # no test takes as long
# A process that runs out of memory waits ten seconds each time, but not many times in a row.
_LOOK_SECONDS, _MOST_IDLE_SECONDS, _LEAST_WORK_SECONDS = 15.0, 75.0, 0.02
_ATTEMPTS = 3
_one_at_a_time = threading.Lock()
_starters: dict[frozenset[tuple[str, str]], tuple[subprocess.Popen[bytes], socket.socket]] = {}


def run_in_fork(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    limit_bytes: int | None,
    environment: Mapping[str, str],
) -> Any:
    """What `memfit.devices.run_in_child` does, without importing TensorFlow anew."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _run_once(function, arguments, limit_bytes, environment)
        except _Stuck:
            print(f"{function.__qualname__} does nothing any more; once again.", file=sys.stderr)
    return _run_once(function, arguments, limit_bytes, environment)


class _Stuck(Exception):
    """A child that waits for something that never comes.

    Now and then two threads of TensorFlow's wait in its allocator for memory to be returned, and none of them
    ever wakes up; a loop such as an LSTM's that runs out is where it was seen.
    """


def _run_once(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    limit_bytes: int | None,
    environment: Mapping[str, str],
) -> Any:
    job = {
        "module": function.__module__,
        "file": sys.modules[function.__module__].__file__,
        "function": function.__qualname__,
        "arguments": dict(arguments),
        "limit_bytes": limit_bytes,
    }
    with _one_at_a_time:
        _, starter = _start(environment)
    job_end, ours = os.pipe()
    theirs, answer_end = os.pipe()
    with os.fdopen(ours, "wb") as jobs, os.fdopen(theirs, "rb") as answers, tempfile.TemporaryFile() as log:
        with _one_at_a_time:
            socket.send_fds(starter, [b"x"], [job_end, answer_end, log.fileno()])
            pid = int.from_bytes(starter.recv(8), "big")
        os.close(job_end)
        os.close(answer_end)
        try:
            jobs.write(json.dumps(job).encode() + b"\n")
            jobs.flush()
            _wait_for(pid, answers.fileno())
            line = answers.readline()
            jobs.close()
            answers.read()  # until it has ended
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
        log.seek(0)
        last_lines = log.read()[-20_000:].decode(errors="replace").splitlines()[-12:]
    if not line.endswith(b"\n"):
        raise ChildFailed(function.__qualname__, exit_code=None, last_lines=last_lines)
    answer = json.loads(line)
    if "error" in answer:
        raise ChildFailed(
            function.__qualname__, exit_code=None, last_lines=answer["error"].splitlines()[-12:]
        )
    return answer["result"]


def _wait_for(pid: int, answers: int) -> None:
    """Wait until a child has something to say, or for as long as it does something."""
    before, idle = -1.0, 0
    while not select.select([answers], [], [], _LOOK_SECONDS)[0]:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            now = times.user + times.system
            idle = idle + 1 if now - before < _LEAST_WORK_SECONDS else 0
            before = now
            if idle * _LOOK_SECONDS >= _MOST_IDLE_SECONDS:
                raise _Stuck


def starter_pids() -> set[int]:
    """The processes that forks come from, which stay until the tests are over."""
    return {process.pid for process, _ in _starters.values()}


def _start(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    key = frozenset(environment.items())
    if key not in _starters:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        _starters[key] = (process, ours)
        atexit.register(_stop, process, ours)
    return _starters[key]


def _stop(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def _fork_on_request(connection: socket.socket) -> None:
    """Import what takes long, then fork for each request until nobody is there to ask."""
    import keras
    import numpy as np
    import tensorflow as tf

    del keras, tf
    gc.collect()
    gc.freeze()  # a fork's collections then leave alone what was imported, and the memory stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        if not message:
            return
        if (pid := os.fork()) == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            random.seed()
            np.random.seed()
            _answer()
        connection.send(pid.to_bytes(8, "big"))
        for descriptor in descriptors:
            os.close(descriptor)


def _answer() -> None:
    from memfit.machine import child_main

    try:
        child_main.main()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    _fork_on_request(socket.socket(fileno=int(sys.argv[1])))
