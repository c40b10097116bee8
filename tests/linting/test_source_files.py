"""Files, folders and notebooks of every sort: what cannot be read is said, and the others go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from memfit.core.errors import SourceNotFound
from memfit.linting.lint_files import lint
from memfit.linting.source_files import source_of, without_magics

BAD = "import keras\noptimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)\nm.compile(optimizer)\n"


def _notebook(*cells: str | list[str], **more: Any) -> bytes:
    return json.dumps(
        {"cells": [{"cell_type": "code", "source": cell} for cell in cells], "nbformat": 4, **more}
    ).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"def f(:\n", "line 1: "),
        (b"print 'python 2'\n", "line 1: Missing parentheses"),
        (b"x = 1\n\0\n", "not text: it has null bytes"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "not text"),
        (b"x = '\xff'\n", "not text"),
        (b"# coding: no-such-code\n", "not text that Python reads: unknown encoding"),
        (b"# coding: base64\nx\n", "not text"),
        (b"(" * 5000 + b")" * 5000, "line 1: "),
        (b"x = " + b"-" * 100_000 + b"1", "nested too deeply"),
        (b"x = " + b"9" * 5000, "line 1: "),
        (b"x" * ((4 << 20) + 1), "larger than 4 MiB"),
        (b"if True:\n\tx = 1\n        y = 2\n", "line 3: "),
    ],
)
def test_what_is_not_python_is_said(data: bytes, reason: str) -> None:
    source, unread = source_of("a.py", data, is_notebook=False)
    assert source is None
    assert reason in unread[0].reason
    assert "\n" not in unread[0].reason


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"\xef\xbb\xbfx = 1\n",
        b"# coding: latin-1\nx = '\xe4'\n",
        b"x = 1\r\ny = 2\r",
        b"'\\d'\n",
    ],
)
def test_what_is_odd_python_is_read(data: bytes) -> None:
    source, unread = source_of("a.py", data)
    assert source is not None
    assert unread == []


@pytest.mark.parametrize("operator", [b" + ", b".b", b"(1)"])
def test_very_long_expressions_do_not_end_it(operator: bytes, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_bytes(
        b"x = a" + operator + operator.join([b"a"] * 3000 if b"+" in operator else [b""] * 3000)
    )
    (tmp_path / "other.py").write_text(BAD)
    found = lint([str(tmp_path)])
    assert [finding.rule for finding in found.findings] == ["MF027"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a notebook: it is not JSON"),
        (b"{", "not a notebook: it is not JSON"),
        (b"\xff", "not a notebook: it is not JSON"),
        (b"[" * 100_000, "not a notebook: it is not JSON"),
        (b"[]", "not a notebook: it is not a JSON object"),
        (b"{}", "a notebook without cells"),
        (b'{"cells": null}', "a notebook without cells"),
        (b'{"cells": {}}', "a notebook without cells"),
        (b'{"worksheets": []}', "a notebook without cells"),
    ],
)
def test_what_is_not_a_notebook_is_said(data: bytes, reason: str) -> None:
    source, unread = source_of("a.ipynb", data, is_notebook=True)
    assert source is None
    assert [one.reason for one in unread] == [reason]


@pytest.mark.parametrize(
    "data",
    [b'{"cells": []}', b'{"cells": [1, {}, {"cell_type": "code"}, {"cell_type": "code", "source": 7}]}'],
)
def test_empty_cells_are_nothing(data: bytes) -> None:
    source, unread = source_of("a.ipynb", data, is_notebook=True)
    assert source is not None
    assert unread == []


def test_notebooks_are_counted_by_cells(tmp_path: Path) -> None:
    cells = [
        ["%matplotlib inline\n", "import keras\n"],
        "%%bash\nrm -rf $(pwd)/x\n",
        "def broken(:",
        "!pip install keras\nfiles = !ls\n\noptimizer = keras.optimizers.SGD(gradient_accumulation_steps=4)",
        "model.compile(optimizer)",
        "optimizer?",
    ]
    (tmp_path / "a.ipynb").write_bytes(_notebook(*cells))
    found = lint([str(tmp_path)])
    (finding,) = found.findings
    assert (finding.cell, finding.line, finding.end_line) == (4, 4, 4)
    assert finding.source.startswith("optimizer = ")
    assert [one.reason.partition(": ")[0] for one in found.unread] == ["cell 3"]
    assert found.files == 1


def test_old_notebooks_are_read() -> None:
    data = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"]}]}]}
    source, _ = source_of("a.ipynb", json.dumps(data).encode(), is_notebook=True)
    assert source is not None
    assert source.text == "x = 1\ny = 2"


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("%timeit f()", "pass"),
        ("    !ls", "    pass"),
        ("?f", "pass"),
        ("f.g??", "pass"),
        ("x = !ls", "x = None"),
        ("x = %time f()", "x = None"),
        ("x = a % b", "x = a % b"),
        ("y = x != 3", "y = x != 3"),
        ("print('why?')", "print('why?')"),
        ("# really?", "# really?"),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("%%html\n<b>\n</b>", "\n\n"),
    ],
)
def test_magics(line: str, python: str) -> None:
    assert without_magics(line) == python


def test_folders_leave_out_what_is_not_the_users(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "deep/er/b.py",
        ".hidden/c.py",
        "lib/site-packages/d.py",
        "__pycache__/e.py",
        "mine/f.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BAD)
    (tmp_path / "mine" / "pyvenv.cfg").touch()
    (tmp_path / "a.txt").write_text(BAD)

    def found(*parts: str) -> list[str]:
        paths = lint([str(tmp_path.joinpath(*parts))]).findings
        return [Path(finding.path).name for finding in paths]

    assert found() == ["a.py", "b.py"]
    assert found("lib", "site-packages") == ["d.py"]
    assert found(".hidden") == ["c.py"]
    assert found("a.txt") == ["a.txt"]  # what is named is looked at


def test_a_file_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert lint([str(tmp_path), str(tmp_path / "a.py"), str(tmp_path / "loop" / "a.py")]).files == 1


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a.py").write_text(BAD)
    found = lint([str(tmp_path)])
    assert [one.reason for one in found.unread] == ["no such file or directory"]
    assert len(found.findings) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_read_are_said(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert [one.reason for one in lint([str(tmp_path)]).unread] == ["permission denied"]


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(SourceNotFound, match=r"Try: memfit lint .*train.py"):
        lint([str(tmp_path / "trian.py")])


def test_standard_input() -> None:
    found = lint(["-"], standard_input=BAD.encode)
    assert [finding.path for finding in found.findings] == ["<stdin>"]
    notebook = lint(["-"], standard_input=lambda: _notebook(BAD))
    assert [finding.cell for finding in notebook.findings] == [1]
