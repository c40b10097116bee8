"""Paths -> source code: files, folders, notebooks; what cannot be read is reported and left out."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from memfit.core.errors import SourceNotFound
from memfit.core.records import UnreadSource

STANDARD_INPUT = "<stdin>"
_LARGEST_BYTES = 4 << 20  # of code; more is not written into one file by hand
_LARGEST_NOTEBOOK_BYTES = 256 << 20  # with all the pictures in it
_SKIPPED = {"__pycache__", "site-packages", "node_modules", "venv", "env", "build", "dist"}


@dataclass(frozen=True)
class SourceFile:
    """Python source code that has been parsed, and where its lines are."""

    path: str
    text: str
    tree: ast.Module
    cells: tuple[tuple[int, int], ...] = ()  # of each line of a notebook: which cell, and which line in it

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell and the line in it; no cell where it is no notebook."""
        return self.cells[line - 1] if 0 < line <= len(self.cells) else (None, line)


class UnreadableSource(Exception):
    """Why something cannot be looked at."""


def find_files(paths: Iterable[str]) -> Iterator[Path | UnreadSource]:
    """The files that paths lead to, each once: named ones as they are, those of folders by their endings."""
    seen: set[str] = set()
    for path in map(Path, paths):
        if not os.path.lexists(path):
            raise SourceNotFound(printable(path), near=_near(path))
        for found in _files_below(path) if path.is_dir() else [path]:
            name = os.path.realpath(found.path if isinstance(found, UnreadSource) else found)
            if name not in seen:
                seen.add(name)
                yield found


def _near(path: Path) -> list[str]:
    try:
        names = [found.name for found in path.parent.iterdir()]
    except OSError:
        return []
    return [str(path.parent / name) for name in get_close_matches(path.name, names, n=1)]


def _files_below(folder: Path) -> Iterator[Path | UnreadSource]:
    refused: list[OSError] = []
    for root, folders, files in os.walk(folder, onerror=refused.append):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(root, name)))
        yield from (Path(root, name) for name in sorted(files) if name.endswith((".py", ".ipynb")))
        yield from (UnreadSource(printable(error.filename), _reason(error)) for error in refused)
        refused.clear()
    yield from (UnreadSource(printable(error.filename), _reason(error)) for error in refused)


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def printable(path: str | Path) -> str:
    """A path as text that can be printed; names of files may hold any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def read_source(path: Path) -> tuple[SourceFile | None, list[UnreadSource]]:
    """A file's source code, and what of it cannot be looked at."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_NOTEBOOK_BYTES + 1)
    except OSError as error:
        return None, [UnreadSource(printable(path), _reason(error))]
    return source_of(printable(path), data, is_notebook=path.suffix == ".ipynb")


def source_of(
    path: str, data: bytes, *, is_notebook: bool | None = None
) -> tuple[SourceFile | None, list[UnreadSource]]:
    """Bytes as source code; whether they are a notebook is found out where it is not said."""
    if is_notebook is None:
        is_notebook = data.lstrip()[:1] == b"{" and b'"cells"' in data
    try:
        return _notebook(path, data) if is_notebook else (_script(path, data), [])
    except UnreadableSource as error:
        return None, [UnreadSource(path, str(error))]


def _script(path: str, data: bytes) -> SourceFile:
    if len(data) > _LARGEST_BYTES:
        raise UnreadableSource(f"larger than {_LARGEST_BYTES >> 20} MiB")
    text = _decoded(data)
    return SourceFile(path, text, _parsed(text))


def _notebook(path: str, data: bytes) -> tuple[SourceFile | None, list[UnreadSource]]:
    if len(data) > _LARGEST_NOTEBOOK_BYTES:
        raise UnreadableSource(f"larger than {_LARGEST_NOTEBOOK_BYTES >> 20} MiB")
    try:
        found = cells_of(data)
    except InvalidNotebook as error:
        raise UnreadableSource(str(error)) from error
    lines, places, unread = [], [], []
    for number, text in found:
        try:
            _parsed(text)
        except UnreadableSource as error:
            unread.append(UnreadSource(path, f"cell {number}: {error}"))
            continue
        own = _lines(text)
        lines += own
        places += [(number, line) for line in range(1, len(own) + 1)]
    text = "\n".join(lines)
    if len(text) > _LARGEST_BYTES:
        raise UnreadableSource(f"larger than {_LARGEST_BYTES >> 20} MiB of code")
    return SourceFile(path, text, _parsed(text), tuple(places)), unread


def _lines(text: str) -> list[str]:
    """Lines as Python counts them; `splitlines` knows more ends than Python does."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _decoded(data: bytes) -> str:
    if b"\0" in data:
        raise UnreadableSource("not text: it has null bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding, newline=None).read()
    except SyntaxError as error:  # what tokenize calls an encoding that it does not know
        raise UnreadableSource(f"not text that Python reads: {error.msg}") from error
    except (LookupError, ValueError) as error:
        raise UnreadableSource(f"not text: {error}") from error


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strings with odd escapes
            return ast.parse(text)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UnreadableSource(f"{where}{_one_line(error.msg)}") from error
    except (RecursionError, MemoryError) as error:
        raise UnreadableSource("nested too deeply to be parsed") from error
    except ValueError as error:  # null bytes, numbers with thousands of digits
        raise UnreadableSource(_one_line(str(error))) from error


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text or "invalid syntax")


_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w,\s.\[\]]+=\s*)[%!].*$")
_QUESTION = re.compile(r"^[\w.\s%]+\?{1,2}\s*$")
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")


class InvalidNotebook(Exception):
    """Why something is not a notebook."""


def cells_of(data: bytes) -> list[tuple[int, str]]:
    """The code cells as Python, with their numbers among all cells, counted from 1."""
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidNotebook("not a notebook: it is not JSON") from error
    if not isinstance(notebook, dict):
        raise InvalidNotebook("not a notebook: it is not a JSON object")
    cells = notebook.get("cells")
    if cells is None:  # as notebooks were before 2015
        sheets = notebook.get("worksheets")
        first = sheets[0] if isinstance(sheets, list) and sheets else None
        cells = first.get("cells") if isinstance(first, dict) else None
    if not isinstance(cells, list):
        raise InvalidNotebook("a notebook without cells")
    return [
        (number, without_magics(_text(cell)))
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    ]


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def without_magics(text: str) -> str:
    """Code of a cell with `pass` where IPython would do something that Python cannot."""
    lines = re.split(r"\r\n|\r|\n", text)
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_PYTHON_CELLS):
        return "\n" * (len(lines) - 1)
    return "\n".join(_without_magic(line) for line in lines)


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    if stripped.startswith(("%", "!", "?")) or _QUESTION.match(line):
        return f"{indent}pass"
    assigned = _ASSIGNED_MAGIC.match(line)
    return f"{assigned.group(1)}None" if assigned and "==" not in assigned.group(1) else line
