"""The user's own code: imported, never run as the main program, and named when it raises."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from memfit.core.errors import MemfitError, TargetFailed
from memfit.core.user_code import is_library
from memfit.private.patching import AfterImport

logger = logging.getLogger("memfit")

_COMMANDS = Path(__file__).parent
_OURS = _COMMANDS.parent
_LONGEST = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def import_file(file: Path, name: str = "") -> ModuleType:
    """A file as a module, imported once, with its folder where `python file.py` has it.

    It is run no further than to where it begins to train, if it has the name that is looked for by then.
    """
    file = file.resolve()
    look_in(file.parent)
    known_as = _module_name(file)
    if known_as in sys.modules:
        return sys.modules[known_as]
    spec = importlib.util.spec_from_file_location(known_as, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[known_as] = importlib.util.module_from_spec(spec)
    try:
        with _until_training(module, name):
            spec.loader.exec_module(module)
    except _TrainingBegins:
        logger.info("%s was run up to its first training.", file.name)
    except BaseException:
        del sys.modules[known_as]
        raise
    return module


class _TrainingBegins(BaseException):
    """A file that is imported begins to train; a script's own `except Exception` does not catch it."""


@contextmanager
def _until_training(module: ModuleType, name: str) -> Iterator[None]:
    """Have a file end where it begins to train, once it has the name that was asked for."""
    undone: dict[str, Any] = {}

    def ending(method: Callable[..., Any]) -> Callable[..., Any]:
        def end(*arguments: Any, **options: Any) -> Any:
            if name and hasattr(module, name):
                raise _TrainingBegins
            return method(*arguments, **options)

        return end

    def watch() -> None:
        import keras

        for method in ("fit", "train_on_batch"):
            undone[method] = getattr(keras.Model, method)
            setattr(keras.Model, method, ending(undone[method]))

    hook = AfterImport("keras", watch)
    hook.install()
    try:
        yield
    finally:
        hook.remove()
        for method, before in undone.items():
            setattr(sys.modules["keras"].Model, method, before)


def look_in(folder: Path) -> None:
    """Let imports find what is in a folder, before anything else."""
    if os.fspath(folder) not in sys.path[:1]:
        sys.path.insert(0, os.fspath(folder))


def _module_name(file: Path) -> str:
    """As other files of the user import it, unless that name stands for something else already."""
    loaded = sys.modules.get(file.stem)
    taken = file.stem in sys.stdlib_module_names or (
        loaded is not None and getattr(loaded, "__file__", None) != os.fspath(file)
    )
    return f"__memfit_{file.stem}__" if taken else file.stem


@contextmanager
def user_code(target: str, doing: str, *, folder: Path, suggestion: str) -> Iterator[None]:
    """Turn what the user's code raises into an error that names its line; `doing` says what it was there for.

    Inside, the code finds no arguments of memfit in `sys.argv`.
    """
    arguments, sys.argv = sys.argv, [target.rpartition(":")[0] or target]
    try:
        yield
    except MemfitError:
        raise
    except (Exception, SystemExit) as error:
        if _is_ours(error):
            raise
        told, where = _in_files_of(folder, error)
        raise TargetFailed(target, doing, describe(told), where=where, suggestion=suggestion) from error
    finally:
        sys.argv = arguments


def describe(error: BaseException) -> str:
    """An error in one line: its kind and the part of its message that says what is wrong."""
    message, _, _ = _COLOURS.sub("", str(error)).partition("Arguments received by")
    text = " ".join(f"{type(error).__name__}: {message}".split()).rstrip(".: ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised in memfit itself: a bug, whose traceback is worth more than a short error."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return raised_in.is_relative_to(_OURS) and not raised_in.is_relative_to(_COMMANDS)


def _in_files_of(folder: Path, error: BaseException) -> tuple[BaseException, str | None]:
    """The error to tell and its line in the user's files: where Keras raised it anew, the one before."""
    cause: BaseException | None = error
    while cause is not None:
        if (line := _own_line(folder, cause)) is not None:
            return cause, line
        cause = cause.__cause__ or cause.__context__
    return error, None


def _own_line(folder: Path, error: BaseException) -> str | None:
    """The innermost line of the user's files that an error went through."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _line(error.filename, error.lineno, error.text)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(folder) and not is_library(frame.filename) and frame.lineno:
            return _line(frame.filename, frame.lineno, frame.line)
    return None


def _line(filename: str, number: int, text: str | None) -> str:
    file = Path(filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}, line {number}: {(text or '').strip()}"
