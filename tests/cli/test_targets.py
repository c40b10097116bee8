"""TARGET and --data up to where TensorFlow begins: found or refused, imported as Python would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memfit.cli.targets import find_data, find_model
from memfit.cli.user_modules import describe, import_file, user_code
from memfit.core.errors import DoesNotFit, InvalidTarget, TargetFailed, TargetNotFound


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder; modules and paths that come from it are gone afterwards."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    "text", ["train.py", "train.py:", ":model", "", ":", "models/train:model", "model.h5", "a..b:model"]
)
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidTarget) as caught:
        find_model(text)
    assert str(caught.value) == (
        "expected TARGET to be file.py:name, package.module:name or a .keras file.\n"
        f"  Received: {text}\n  Try: train.py:model"
    )


def test_data_has_an_error_of_its_own() -> None:
    with pytest.raises(InvalidTarget, match=r"expected --data to be file.py:name or package.module:name.\n"):
        find_data("data.keras")
    with pytest.raises(InvalidTarget, match=r"Try: --data rows.py:batch"):
        find_data("rows.py")


def test_a_file_that_is_not_there_is_refused_with_those_that_are(folder: Path) -> None:
    for name in ("other.py", "train.py", "notes.txt"):
        (folder / name).touch()
    with pytest.raises(TargetNotFound) as caught:
        find_model("trian.py:model")
    assert str(caught.value) == (
        "the file trian.py does not exist.\n  Received: trian.py:model\n"
        "  Names that are there: train.py, other.py\n  Try: train.py:model"
    )
    assert caught.value.near == ("train.py", "other.py")
    with pytest.raises(TargetNotFound, match=r"the file no/such/train.py does not exist"):
        find_model("no/such/train.py:model")
    with pytest.raises(TargetNotFound, match=r"the file saved.keras does not exist"):
        find_model("saved.keras")
    with pytest.raises(TargetNotFound, match=r"Try: --data train.py:batch"):
        find_data("trian.py:batch")


def test_a_folder_is_no_file(folder: Path) -> None:
    (folder / "train.py").mkdir()
    with pytest.raises(TargetNotFound):
        find_model("train.py:model")


def test_a_target_stays_where_it_is_when_somebody_changes_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").touch()
    target = find_model("train.py:model")
    monkeypatch.chdir("/")
    assert target.file == folder / "train.py"


def test_a_file_is_imported_as_a_module_with_its_folder_on_the_path(folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "train.py").write_text("import neighbour\nname = __name__\nvalue = neighbour.value\n")
    (inside / "neighbour.py").write_text("value = 5\n")
    module = import_file(inside / "train.py")
    assert (module.name, module.value) == ("train", 5)  # type: ignore[attr-defined]
    assert sys.path[0] == str(inside)
    assert sys.modules["train"] is module
    assert import_file(inside / "train.py") is module


@pytest.mark.parametrize("name", ["json.py", "click.py", "my-train.py", "2nd.py"])
def test_a_file_may_have_any_name(folder: Path, name: str) -> None:
    stem = name.removesuffix(".py")
    before = sys.modules.get(stem)
    (folder / name).write_text("value = 5\n")
    module = import_file(folder / name)
    assert module.value == 5  # type: ignore[attr-defined]
    assert before is None or sys.modules[stem] is before
    assert import_file(folder / name) is module


def test_a_file_that_raises_is_not_half_imported(folder: Path) -> None:
    (folder / "train.py").write_text("value = 5\nraise KeyError('x')\n")
    for _ in range(2):
        with pytest.raises(KeyError):
            import_file(folder / "train.py")


def _failure(folder: Path, text: str) -> TargetFailed:
    (folder / "train.py").write_text(text)
    with (
        pytest.raises(TargetFailed) as caught,
        user_code("train.py:model", "when it was imported", folder=folder, suggestion="look"),
    ):
        import_file(folder / "train.py")
    return caught.value


@pytest.mark.parametrize(
    ("text", "reason", "where"),
    [
        ("a = 1\nraise KeyError('x')", "KeyError: 'x'", "2: raise KeyError('x')"),
        ("def f():\n    g()\ndef g():\n    [][0]\nf()", "IndexError: list index out of range", "4: [][0]"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property", "2: json.loads('{')"),
        ("import no_such", "ModuleNotFoundError: No module named 'no_such'", "1: import no_such"),
        ("import sys\nsys.exit(3)", "SystemExit: 3", "2: sys.exit(3)"),
        ("from argparse import *\np = ArgumentParser()\np.add_argument('x')\np.parse_args()",
         "SystemExit: 2", "4: p.parse_args()"),
        ("a = 1\nb = = 2\n", "SyntaxError: invalid syntax", "2: b = = 2"),
    ],
)  # fmt: skip
def test_what_a_file_raises_is_told_with_its_line(folder: Path, text: str, reason: str, where: str) -> None:
    error = _failure(folder, text)
    assert error.reason.startswith(reason)
    assert error.where == f"train.py, line {where}"
    assert str(error).startswith(f"train.py:model failed when it was imported: {reason}")
    assert error.__cause__ is not None


def test_the_line_is_found_in_other_files_of_the_user_too(folder: Path) -> None:
    (folder / "layers.py").write_text("def make():\n    raise ValueError('in there')\n")
    assert _failure(folder, "import layers\nlayers.make()").where == (
        "layers.py, line 2: raise ValueError('in there')"
    )


def test_user_code_does_not_see_our_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["memfit", "estimate"])
    with user_code("train.py:model", "", folder=folder, suggestion="look"):
        assert sys.argv == ["train.py"]
    assert sys.argv == ["memfit", "estimate"]


def test_our_own_errors_and_ctrl_c_stay_what_they_are(folder: Path) -> None:
    ours = DoesNotFit("a step does not fit.", suggestion="less", limit_bytes=None)
    for error in (ours, KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, user_code("x", "", folder=folder, suggestion="look"):
            raise error
        assert caught.value is error


def test_a_bug_of_ours_is_not_blamed_on_the_user(folder: Path) -> None:
    from memfit.reports.bars import bar

    with (
        pytest.raises(TypeError, match="not supported"),
        user_code("x", "", folder=folder, suggestion="look"),
    ):
        bar("a", 3, 4)  # type: ignore[arg-type]


def test_long_and_coloured_messages_are_told_in_one_line() -> None:
    message = (
        "Exception encountered.\n\n\x1b[1mshapes differ.\x1b[0m\n\nArguments received by Dense.call():\n  x"
    )
    assert describe(ValueError(message)) == "ValueError: Exception encountered. shapes differ"
    assert len(describe(ValueError("x" * 5000))) < 400
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
