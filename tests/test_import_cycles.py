"""No module of memfit imports, by way of others, itself: imports inside of functions count too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


def _modules(source: Path) -> dict[str, Path]:
    found = {}
    for path in (source / "memfit").rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(tree: ast.AST) -> set[str]:
    """All names that a module imports: `a.b` and `a.b.c` for `from a.b import c`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def _graph(source: Path) -> dict[str, set[str]]:
    """The modules that each module imports; a package stands aside where a module in it was meant."""
    modules = _modules(source)
    graph = {}
    for name, path in modules.items():
        found = _imported(ast.parse(path.read_text(encoding="utf-8"))) & modules.keys()
        packages = {one for one in found if any(other.startswith(f"{one}.") for other in found)}
        graph[name] = found - packages - {name}
    return graph


def test_no_module_imports_itself_by_way_of_others(repository: Path) -> None:
    graph = _graph(repository / "src")
    assert len(graph) > 200
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("a cycle: " + " <- ".join(error.args[1])) from error


def test_imports_inside_of_functions_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "memfit"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "a.py").write_text("import memfit.b")
    (folder / "b.py").write_text("def f():\n    from memfit import a")
    assert _graph(tmp_path) == {"memfit": set(), "memfit.a": {"memfit.b"}, "memfit.b": {"memfit.a"}}
