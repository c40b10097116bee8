"""Real processes: what they return, how they fail, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from memfit.core.errors import ChildFailed
from memfit.machine import run_in_child
from memfit.machine.child_process import ChildProcess


def add(first: int, second: int) -> int:
    print("this must not mix with the answer")
    return first + second


def count(to: int, emit: Callable[[dict[str, Any]], None]) -> str:
    for number in range(to):
        emit({"number": number})
    return "done"


def fail() -> None:
    raise ValueError("the reason")


def die(number: int) -> None:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), number)


def leave() -> None:
    sys.stderr.write("good bye\n")
    sys.stderr.flush()
    os._exit(7)


def sleep(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    time.sleep(600)


def environment(name: str) -> str | None:
    return os.environ.get(name)


def test_returns_the_result_whatever_is_printed() -> None:
    assert run_in_child(add, {"first": 2, "second": 3}) == 5


def test_events_arrive_in_order() -> None:
    events: list[Any] = []
    assert run_in_child(count, {"to": 3}, on_event=events.append) == "done"
    assert events == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_the_environment_is_the_childs_alone() -> None:
    assert run_in_child(environment, {"name": "MEMFIT_TEST"}, environment={"MEMFIT_TEST": "here"}) == "here"
    assert "MEMFIT_TEST" not in os.environ


def test_an_error_is_passed_on_with_its_reason() -> None:
    with pytest.raises(ChildFailed, match=r"ran fail raised an error[\s\S]*ValueError: the reason"):
        run_in_child(fail)


def test_a_kill_is_told_from_an_error() -> None:
    with pytest.raises(ChildFailed, match=r"was ended by signal 9[\s\S]*last words") as caught:
        run_in_child(die, {"number": int(signal.SIGKILL)})
    assert caught.value.child_exit_code == -9


def test_an_exit_without_a_result_is_told() -> None:
    with pytest.raises(ChildFailed, match=r"exit code 7 and no result[\s\S]*good bye"):
        run_in_child(leave)


def imported(name: str) -> bool:
    return name in sys.modules


def test_a_child_imports_what_its_job_will_need_before_it_has_one() -> None:
    assert ChildProcess(imports=["wave"]).run(imported, {"name": "wave"})
    assert not run_in_child(imported, {"name": "wave"})


def test_a_child_without_a_job_goes_with_the_last_that_holds_it() -> None:
    child = ChildProcess()
    process = child._process
    assert process.poll() is None
    del child
    assert process.poll() == -signal.SIGKILL


def test_a_script_may_hold_the_function_and_the_call(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from memfit.machine import run_in_child\n"
        "def job():\n    return 'done once'\n"
        "if __name__ == '__main__':\n    print(run_in_child(job))\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "done once\n"


def test_files_in_the_current_folder_do_not_get_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert run_in_child(add, {"first": 2, "second": 3}) == 5


def write_half_and_die() -> None:
    for descriptor in range(3, 64):
        try:
            if os.fspath(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:"):
                os.write(descriptor, b'{"result": [1, 2')
        except OSError:
            continue
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the pipe through /proc")
def test_a_child_that_dies_while_it_answers_is_told() -> None:
    with pytest.raises(ChildFailed, match="was ended by signal 9"):
        run_in_child(write_half_and_die)


def _wait_for(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left_when_the_parent_ends(tmp_path: Path, number: signal.Signals) -> None:
    marker = tmp_path / "pid"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_child_process;"
        "from memfit.machine import run_in_child;"
        "run_in_child(test_child_process.sleep, {'marker': sys.argv[2]})"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(marker)], stderr=subprocess.DEVNULL
    )
    assert _wait_for(lambda: marker.exists() and marker.read_text() != "")
    child = int(marker.read_text())
    parent.send_signal(number)
    assert parent.wait(20) == -number
    assert _wait_for(lambda: _is_gone(child))
