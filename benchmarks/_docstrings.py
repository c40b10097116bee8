"""Code examples in the docstrings of installed packages, which is how their guides show things."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

_FENCED = re.compile(r"^([ \t]*)```(?:python|py)?[ \t]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)(?: |$)")


def write_examples(package: Path, folder: Path) -> int:
    """Write every example of a package into a file of its own, and say how many there are."""
    count = 0
    for path in sorted(package.rglob("*.py")):
        for number, code in enumerate(_examples(path)):
            name = "_".join(path.relative_to(package).with_suffix("").parts)
            (folder / f"{package.name}_{name}_{number}.py").write_text(code)
            count += 1
    return count


def _examples(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield from filter(_is_python, _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    for indent, code in _FENCED.findall(text):
        yield dedent(_without_prompts(code) if ">>>" in code else f"{indent}{code}"[len(indent) :])
    outside = _FENCED.sub("", text)
    if ">>>" in outside:
        yield _without_prompts(outside)


def _without_prompts(text: str) -> str:
    lines = [line for line in text.splitlines() if _PROMPT.match(line)]
    return "".join(f"{line.lstrip()[4:]}\n" for line in lines)


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(ast.parse(code).body)
    except (SyntaxError, ValueError):
        return False
