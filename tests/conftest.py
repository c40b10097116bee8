"""Fixtures for all tests: nothing that a test does may leak into the next one."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import forks
from memfit.machine import readings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what is in the background so, and every process that a test interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _global_state() -> dict[str, object]:
    logger = logging.getLogger("memfit")
    return {
        # pytest itself keeps the name of the current test there
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "folder": Path.cwd(),
        "children": _children(),
        "log handlers": list(logger.handlers),
        "log level": logger.level,
        "open measurements": list(readings._open),
        "warning filters": list(warnings.filters),
        "umask": _umask(),
    }


def _children() -> set[int]:
    """All processes below this one, but those that forks come from, and the forks."""
    me = psutil.Process()
    if {child.pid for child in me.children(recursive=True)} <= forks.starter_pids():
        return set()  # nearly always; each further look goes through all processes of the machine
    starters = [child for child in me.children() if child.pid in forks.starter_pids()]
    known = {child.pid for starter in starters for child in (starter, *starter.children(recursive=True))}
    return {child.pid for child in me.children(recursive=True)} - known


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.fixture(autouse=True)
def no_leaked_state() -> Iterator[None]:
    """A test that leaves global state behind fails, not the one that trips over it."""
    before = _global_state()
    yield
    after = _global_state()
    leaked = [name for name, value in before.items() if after[name] != value]
    assert not leaked, f"global state leaked: {', '.join(leaked)}"


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parent.parent
