"""Jupyter notebooks -> Python: code cells without magics, line by line."""

from __future__ import annotations

import json
import re
from typing import Any

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
