"""A supervised script behaves as under plain Python, and nobody is left behind; without TensorFlow."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

PARENT = """
import os, sys
from memfit.running.journal.run_folder import Job
from memfit.running.parent.process import run_child
module = sys.argv[1] == "-m"
script, *arguments = sys.argv[1 + module:]
ended = run_child(Job(script, tuple(arguments), is_module=module), os.environ)
if ended.exit_cause is not None:
    print(ended.exit_cause.cause, "|", ended.exit_cause.words, file=sys.stderr)
sys.exit(ended.code)
"""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PARENT, *arguments]


def _run(command: list[str], folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, input=given)


def _both(tmp_path: Path, text: str, *arguments: str, given: str = "") -> list[Any]:
    """What a script does under plain Python, and under a parent: its code and its output."""
    (tmp_path / "script.py").write_text(text)
    plain = _run([sys.executable, "script.py", *arguments], tmp_path, given)
    ours = _run(_command("script.py", *arguments), tmp_path, given)
    return [(one.returncode, one.stdout, one.stderr) for one in (plain, ours)]


SCRIPTS = {
    "arguments": "import sys; print(sys.argv, sys.path[0] == __import__('os').getcwd(), __name__, __file__)",
    "code": "import sys; print('before'); sys.exit(7)",
    "message": "import sys; sys.exit('it went wrong')",
    "error": "def f():\n    return 1 / 0\n\nf()\n",
    "syntax": "def f(:\n",
    "standard input": "print(input(), input())",
    "folder": "import os; os.chdir('/'); print(os.getcwd())",
    "main": "import sys; print(sys.modules['__main__'].__dict__ is globals(), 'Job' in globals())",
    "fork": "import os\nif os.fork() == 0:\n    os._exit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "workers": (
        "import multiprocessing as m\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(2) as pool: print(pool.map(double, range(4)))\n"
    ),
    "at the end": "import atexit; atexit.register(print, 'over'); raise ValueError('x')",
    "signals": "import signal as s; print(s.pthread_sigmask(s.SIG_BLOCK, []), s.getsignal(2).__name__)",
    "environment": "import os; print(sorted(name for name in os.environ if 'MEMFIT' in name))",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_behave_as_under_plain_python(tmp_path: Path, name: str) -> None:
    plain, ours = _both(tmp_path, SCRIPTS[name], "--batch", "a b", given="one\ntwo\n")
    assert ours == plain


def test_modules_do_too(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(
        "import sys; print(sys.argv, __name__, __package__, sys.modules['__main__'].__dict__ is globals())"
    )
    plain = _run([sys.executable, "-m", "package", "x"], tmp_path)
    ours = _run(_command("-m", "package", "x"), tmp_path)
    assert ours.stdout == plain.stdout


@pytest.mark.parametrize(
    ("name", "cause"), [("SIGKILL", "unknown"), ("SIGABRT", "unknown"), ("SIGTERM", "asked")]
)
def test_the_end_by_a_signal_is_explained(tmp_path: Path, name: str, cause: str) -> None:
    _, ours = _both(tmp_path, f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert ours[0] == 128 + signal.Signals[name]
    assert ours[2].startswith(f"{cause} | ")
    assert name in ours[2]


WAITS = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: (seen.append("SIGINT"), print("interrupted", flush=True)))
signal.signal(signal.SIGTERM, lambda *_: (print(seen, flush=True), sys.exit(5)))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


@contextmanager
def _waiting(tmp_path: Path, text: str = WAITS) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A parent and its child, which waits."""
    (tmp_path / "script.py").write_text(text)
    with subprocess.Popen(
        _command("script.py"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            yield parent, child
        finally:
            for process in (parent, child):
                if process.poll() is None if isinstance(process, subprocess.Popen) else process.is_running():
                    process.kill()


def _interrupt(parent: subprocess.Popen[str]) -> None:
    """Interrupt the parent, and wait until its child says that it was."""
    parent.send_signal(signal.SIGINT)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == "interrupted"


def test_signals_reach_the_script_once(tmp_path: Path) -> None:
    with _waiting(tmp_path) as (parent, child):
        _interrupt(parent)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(10) == 5
        assert parent.stdout is not None
        assert parent.stdout.read().strip() == "['SIGINT']"
        assert not child.is_running()


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    with _waiting(tmp_path) as (parent, child):
        _interrupt(parent)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(10) == 128 + signal.SIGKILL
        assert not child.is_running()


def test_no_child_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    with _waiting(tmp_path) as (parent, child):
        parent.kill()
        parent.wait(10)
        child.wait(5)


TYPED = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", sys.stderr.isatty(), file=sys.stderr, flush=True)
while not seen:
    time.sleep(0.02)
time.sleep(0.5)
print("seen", len(seen), file=sys.stderr, flush=True)
"""


def test_what_is_typed_at_a_terminal_arrives_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TYPED)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, _command("script.py"))
    said = _read_until(terminal, b"ready True")
    os.write(terminal, b"\x03")
    said += _read_until(terminal, b"seen 1")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    assert re.search(rb"seen 1\r\n", said)
    assert b"\r\r\n" not in said


def _read_until(terminal: int, text: bytes) -> bytes:
    said, ends = b"", time.monotonic() + 20
    while text + b"\r\n" not in said:
        assert time.monotonic() < ends, said
        said += os.read(terminal, 4096)
    return said
