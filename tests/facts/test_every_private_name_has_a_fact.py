"""Each file in `memfit.private` has a file of facts, which uses every name of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import memfit.private

_PRIVATE = Path(memfit.private.__file__).parent
_FILES = {
    "_".join(path.relative_to(_PRIVATE).with_suffix("").parts): path
    for path in sorted(_PRIVATE.rglob("*.py"))
    if path.name != "__init__.py"
}


@pytest.mark.parametrize("name", _FILES)
def test_every_name_has_a_fact(name: str) -> None:
    facts = ast.parse((Path(__file__).parent / f"test_{name}.py").read_text())
    used = {node.id for node in ast.walk(facts) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(facts) if isinstance(node, ast.Attribute)}
    defined = [
        node.name
        for node in ast.parse(_FILES[name].read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    # What `called_layers` returns has no constructor that a fact could call.
    assert set(defined) - used <= {"CalledLayers"}


@pytest.mark.parametrize("path", _FILES.values(), ids=_FILES)
def test_files_import_no_underscore_name_from_each_other(path: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("memfit.")]
    assert not [alias.name for node in ours for alias in node.names if alias.name.startswith("_")]
