"""Which line of the user's code an operation comes from, by what its name and traceback say."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from memfit.graph import labels
from memfit.graph.labels import Lines, users_line


class Frame(NamedTuple):
    filename: str
    lineno: int


OURS = Path(labels.__file__)
STEP = Frame(os.fspath(OURS.with_name("trace.py")), 1)
GUARD = Frame(os.fspath(OURS.parents[1] / "levers" / "rematerialised.py"), 2)
LIBRARY = Frame(f"{sysconfig.get_path('purelib')}/keras/src/layers/layer.py", 3)
PYTHON = Frame(f"{sysconfig.get_path('stdlib')}/functools.py", 4)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def user(line: int, file: str = "train.py") -> Frame:
    return Frame(os.fspath(Path.cwd() / file), line)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ([], ""),
        ([LIBRARY, PYTHON], ""),
        ([LIBRARY, (7, "train.py"), LIBRARY], "train.py:7"),
        ([(7, "train.py"), GUARD, (8, "nets/block.py"), LIBRARY, PYTHON], "nets/block.py:8"),
        ([(7, "../elsewhere/nets/block.py")], "nets/block.py:7"),
        ([(7, "train.py"), Frame("<frozen importlib>", 1), Frame("<string>", 2)], "train.py:7"),
        ([(7, "train.py"), (8, "venv/lib/site-packages/other/ops.py")], "train.py:7"),
    ],
)
def test_the_innermost_line_that_is_not_of_a_library(inside: list[Any], expected: str) -> None:
    frames = [one if isinstance(one, Frame) else user(*one) for one in inside]
    assert users_line([user(1), GUARD, STEP, *frames]) == expected


def test_what_is_installed_may_be_a_link() -> None:
    packages, store = Path("site-packages"), Path("store")
    packages.mkdir()
    store.mkdir()
    (store / "ops.py").touch()
    (packages / "ops.py").symlink_to(store.absolute() / "ops.py")
    assert users_line([user(1, "site-packages/ops.py")]) == ""


def _graph(**tracebacks: tuple[Frame, ...] | None) -> dict[str, Any]:
    """Operations by name, with __ for the slashes in it."""
    names = {name.replace("__", "/"): traceback for name, traceback in tracebacks.items()}
    return {
        name: SimpleNamespace(name=name, traceback=one, inputs=(), called=None) for name, one in names.items()
    }


def _as_graph(graph: dict[str, Any]) -> Any:
    return SimpleNamespace(get_operations=lambda: list(graph.values()))


def _lines(graph: dict[str, Any], *names: str) -> list[str]:
    found = Lines(_as_graph(graph), lambda operation: operation.called)
    return [found.of(name) for name in names]


def test_operations_and_what_has_taken_their_place() -> None:
    graph = _graph(net__MatMul=(STEP, user(5)), net__Call=(STEP, user(6)), Imported=None)
    names = ["net/MatMul", "net/Call/Exp", "Imported", "net/MatMul-made-since", "nothing"]
    assert _lines(graph, *names) == ["train.py:5", "train.py:6", "", "", ""]


def test_a_gradient_has_the_line_of_what_it_is_the_gradient_of() -> None:
    backward = (STEP, user(9), LIBRARY)
    graph = _graph(
        net__MatMul=(STEP, user(5)),
        net__dense__Relu=(STEP, user(6), LIBRARY),
        net__Exp=(STEP, user(7)),
        net__mul=(STEP, user(8)),
        gradient_tape__net__MatMul__MatMul=backward,
        gradient_tape__net__dense__ReluGrad=backward,
        gradient_tape__net__mul=backward,
        gradient_tape__net__Reshape=backward,
        AddN=backward,
    )
    graph["gradient_tape/net/mul"].inputs = (SimpleNamespace(op=graph["net/Exp"]),)  # named by chance
    found = {
        "gradient_tape/net/MatMul/MatMul": "train.py:5",
        "gradient_tape/net/dense/ReluGrad": "train.py:6",
        "gradient_tape/net/mul": "train.py:7",
        "gradient_tape/net/Reshape": "train.py:9",
        "AddN": "train.py:9",
    }
    assert _lines(graph, *found) == list(found.values())


def test_what_is_in_a_function_has_its_line_there() -> None:
    graph = _graph(net__Call=(STEP, user(5)), Other=(STEP, user(6)))
    inside = _graph(Exp=(STEP, user(5), user(7)), Sum=(STEP, LIBRARY))
    graph["net/Call"].called = _as_graph(inside)
    names = ["net/Call/Exp", "net/Call/gradient_tape/Exp/mul", "net/Call/Sum", "net/Call", "Other"]
    assert _lines(graph, *names) == [f"train.py:{number}" for number in (7, 7, 5, 5, 6)]


def test_many_operations_of_one_line_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(labels, "users_line", lambda traceback: looks.append(traceback) or "train.py:5")
    graph = _graph(**{f"MatMul_{number}": (STEP, user(5)) for number in range(9)})
    assert set(_lines(graph, *graph, *graph)) == {"train.py:5"}
    assert len(looks) == 1
