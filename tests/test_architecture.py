"""The house keeps its rules: folders, names, words, and the page that describes it."""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memfit
from limited import run_limited

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "memfit"
MODULES = sorted(HOUSE.rglob("*.py"))
PAGE = (ROOT / "docs" / "architecture.md").read_text()
BANNED = re.compile(r"\b(?:leave for|is said|is told|are told|nobody|somebody)\b", re.IGNORECASE)


def _names_in(folder: Path) -> list[str]:
    """The names of the modules and folders directly inside a folder."""
    files = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    return files + [path.parent.name for path in folder.glob("*/__init__.py")]


def test_no_folder_has_more_than_twenty_modules() -> None:
    for folder in {path.parent for path in MODULES}:
        assert len(list(folder.glob("*.py"))) <= 20, folder


def test_no_module_has_more_than_400_lines() -> None:
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 400, path


def test_names_are_not_used_twice() -> None:
    """Not within one verb's folder, and at most ten times in the whole tree."""
    names = collections.Counter(
        name for folder in HOUSE.rglob("*") if folder.is_dir() for name in _names_in(folder)
    )
    assert len([name for name, count in names.items() if count > 1]) <= 10
    for verb in HOUSE.iterdir():
        inside = [
            name for folder in [verb, *verb.rglob("*")] if folder.is_dir() for name in _names_in(folder)
        ]
        assert len(inside) == len(set(inside)), verb
    assert "internals" not in names


def test_no_folder_has_the_name_of_a_public_function() -> None:
    """A submodule and a function of one name overwrite each other on import."""
    functions = set(memfit.__all__) - {"data", "devices", "errors"}
    assert not functions & set(_names_in(HOUSE))


def test_the_page_names_files_that_exist() -> None:
    named = set(re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", PAGE))
    assert len(named) > 30
    for name in named:
        places = [path for path in MODULES if path.as_posix().endswith(f"/{name}")]
        assert places or (ROOT / name).exists(), name


def test_the_page_names_every_folder_of_a_verb() -> None:
    for folder in HOUSE.glob("*/__init__.py"):
        assert f"`{folder.parent.name}/" in PAGE or f"`{folder.parent.name}`" in PAGE, folder.parent.name


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_documents_keep_to_the_words(path: Path) -> None:
    assert not BANNED.findall(path.read_text())


def test_user_texts_keep_to_the_words() -> None:
    """Strings of the code, docstrings left out: whatever may reach a user."""
    for path in MODULES:
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                assert not BANNED.search(node.value), f"{path}:{node.lineno}"


def test_docstrings_name_their_subject() -> None:
    """'The bytes that ...', not 'What ...'."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                first = (ast.get_docstring(node) or "").partition(" ")[0]
                assert first not in ("What", "Whatever", "How", "Who"), f"{path}: {ast.get_docstring(node)}"


def _call_every_verb_twice() -> dict[str, Any]:
    import keras
    import numpy as np

    for module in pkgutil.walk_packages(memfit.__path__, "memfit."):
        if not module.name.endswith((".__main__", ".child_main", "child.main")):
            importlib.import_module(module.name)
    x = np.random.default_rng(0).random((32, 8)).astype("float32")
    seen: dict[str, list[Any]] = collections.defaultdict(list)
    for _ in range(2):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        seen["limit"].append(memfit.limit("256MiB"))
        seen["estimate"].append(memfit.estimate(model, 8).peak_bytes > 0)
        seen["plan"].append(memfit.plan(model, 8, "200MiB").batch_size)
        seen["fit"].append(memfit.fit(model, x, x[:, :1], batch_size=8, verbose=0).run.steps)
        with memfit.protect(model) as protection:
            model.evaluate(x, x[:, :1], verbose=0)
        seen["protect"].append(len(protection.run.ooms))
        step = memfit.step(
            lambda x, y, model=model: keras.ops.mean((model(x, training=True) - y) ** 2),
            keras.optimizers.SGD(),
            model.trainable_variables,
        )
        seen["step"].append(bool(np.isfinite(float(step(x[:8], x[:8, :1])))))
        seen["diagnose"].append(memfit.diagnose("nothing happened").cause)
        with memfit.watch() as watch:
            pass
        seen["watch"].append(len(watch.leaks))
        with contextlib.suppress(memfit.errors.NothingToGain):
            memfit.remat(model).undo()
        seen["remat"].append(True)
        seen["release"].append(memfit.release(model))
        seen["data"].append(len(list(memfit.data.from_arrays(x, x[:, :1], batch_size=8))))
    return dict(seen)


@pytest.mark.real
def test_every_verb_is_there_after_every_module_was_imported() -> None:
    """A module that overwrites a verb shows in the second call at the latest."""
    seen = run_limited(_call_every_verb_twice, "256MiB")
    verbs = set(memfit.__all__) - {
        "Budget",
        "Diagnosis",
        "Estimate",
        "MemfitError",
        "Plan",
        "Run",
        "__version__",
    }
    assert set(seen) == verbs - {"devices", "errors"}
    for name, (first, second) in seen.items():
        assert first == second, name


def test_every_module_says_what_it_is() -> None:
    for path in MODULES:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, path
        assert "TODO" not in docstring, path


IMPORTS = """
import contextlib, importlib, io, pkgutil, memfit
names = [module.name for module in pkgutil.walk_packages(memfit.__path__, "memfit.")]
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    for name in names:
        if not name.endswith(("__main__", "child_main", "child.main")):
            importlib.import_module(name)
print(len(names), repr(printed.getvalue()))
"""


@pytest.mark.real
def test_nothing_prints_while_modules_are_imported() -> None:
    """TensorFlow's own lines, which its C++ writes, do not count."""
    result = subprocess.run([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True, check=True)
    count, printed = result.stdout.split(maxsplit=1)
    assert int(count) > 200
    assert printed.strip() == "''"
