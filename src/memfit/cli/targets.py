"""TARGET and --data: what they name, found before anything is loaded, and loaded with clear errors."""

from __future__ import annotations

import difflib
import gc
import importlib
import inspect
import os
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from memfit.cli.options import output_set_aside
from memfit.cli.progress import waiting
from memfit.cli.user_modules import describe, import_file, look_in, user_code
from memfit.core.errors import CannotLoadModel, InvalidTarget, TargetFailed, TargetNotFound, WrongTarget
from memfit.machine import check_installed

_MOST_NAMES = 6


@dataclass(frozen=True)
class Target:
    """A name in a file or module of the user's, or a file that holds a model."""

    text: str  # as the user wrote it
    place: str  # the part before the colon
    name: str  # the part after it; empty for a file that holds a model
    file: Path | None  # absolute; None for a module
    option: str = ""  # what comes before it on the command line

    @property
    def folder(self) -> Path:
        """The folder of the user's own files."""
        return Path.cwd() if self.file is None else self.file.resolve().parent

    def with_name(self, name: str) -> str:
        """Another name in the same place, for the command line."""
        return f"{self.option}{self.place}:{name}"


def find_model(text: str) -> Target:
    """The target that TARGET names: `file.py:name`, `package.module:name` or a `.keras` file."""
    if text.endswith(".keras"):
        return _existing(Target(text, text, "", Path(text).absolute()))
    return _find(text, "TARGET", "file.py:name, package.module:name or a .keras file", example="model")


def find_data(text: str) -> Target:
    """The target that --data names: `file.py:name` or `package.module:name`."""
    return _find(text, "--data", "file.py:name or package.module:name", example="batch", option="--data ")


def _find(text: str, title: str, expected: str, *, example: str, option: str = "") -> Target:
    place, _, name = text.rpartition(":")
    is_file = place.endswith(".py")
    if not name or not (is_file or all(part.isidentifier() for part in place.split("."))):
        likely = text.strip(":") if text.strip(":").endswith(".py") else "train.py"
        suggestion = f"{option}{likely}:{example}"
        raise InvalidTarget(text, title=title, expected=expected, suggestion=suggestion)
    return _existing(Target(text, place, name, Path(place).absolute() if is_file else None, option))


def _existing(target: Target) -> Target:
    if target.file is None or target.file.is_file():
        return target
    ending = target.file.suffix
    near = _nearest(target.file.name, sorted(path.name for path in target.file.parent.glob(f"*{ending}")))
    place = os.fspath(Path(target.place).with_name(near[0])) if near else f"train{ending}"
    raise TargetNotFound(
        target.text,
        f"the file {target.place}",
        near=near,
        suggestion=f"{target.option}{place}" + (f":{target.name}" if target.name else ""),
    )


def load_model(target: Target) -> Any:
    """The model that a target names, or that the function that it names returns."""
    if not target.name:
        return _load_saved(target)
    module, value, verb = _load_whatever_its_size(target)
    if isinstance(value, _keras().Model):
        return value
    models = [name for name, one in vars(module).items() if isinstance(one, _keras().Model)]
    raise WrongTarget(
        target.text,
        f"{verb} {_kind(value)}, not a Keras model",
        expected="a keras.Model, or a function without arguments that returns one",
        suggestion=target.with_name(models[0] if models else "build_model"),
    )


def load_data(target: Target) -> Any:
    """The batch, dataset or specs that a target names, or that the function that it names returns."""
    _, value, verb = _load(target)
    if hasattr(value, "element_spec"):
        return value
    leaves = _keras().tree.flatten(value)
    odd = [leaf for leaf in leaves if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))]
    if leaves and not odd:
        return value
    inside = f" with {_kind(odd[0])} in it" if odd and odd[0] is not value else ""
    raise WrongTarget(
        target.text,
        f"{verb} {_kind(value)}{inside}, not a batch, a dataset or specs",
        expected="arrays, tensors, specs or a tf.data.Dataset, or a function that returns them",
        suggestion=f"{target.with_name('batch')}, with `batch = (x[:32], y[:32])` in it",
    )


def _keras() -> Any:
    from memfit.machine import load_keras

    return load_keras()


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _load_saved(target: Target) -> Any:
    keras = _keras()
    try:
        return keras.models.load_model(target.file, safe_mode=True)
    except Exception as error:
        reason, suggestion = _why_not_loaded(target.text, error)
        raise CannotLoadModel(target.text, reason, suggestion=suggestion) from error


def _why_not_loaded(path: str, error: Exception) -> tuple[str, str]:
    """The reason and what to try; Keras tells the first three apart only in its texts."""
    message = str(error)
    if not zipfile.is_zipfile(path):
        return "it is not a whole archive of the kind that Keras writes", f'model.save("{path}")'
    if "safe_mode=False" in message:
        reason = "it holds Python code that loading would run, and memfit does not trust files"
        return reason, "train.py:build_model, a function that builds or loads the model itself"
    if unknown := re.search(r"Could not locate (?:class|function) '(\w+)'", message):
        reason = f"it uses {unknown[1]}, which Keras does not know"
        return reason, f"train.py:build_model, a function that knows {unknown[1]} and loads the file"
    return describe(error), f'model.save("{path}"), with the Keras that is installed here'


def _load_whatever_its_size(target: Target) -> tuple[ModuleType, Any, str]:
    """The same; where weights do not fit in this machine's memory, they are built without any."""
    from memfit.machine import is_oom
    from memfit.machine.readings import no_more_than_there_is

    try:
        with no_more_than_there_is():
            return _load(target)
    except TargetFailed as error:
        if error.__cause__ is None or not is_oom(error.__cause__):
            raise
    gc.collect()
    from memfit.private.tensorflow.variables import variables_without_memory

    with variables_without_memory():
        return _load(target)


def _load(target: Target) -> tuple[ModuleType, Any, str]:
    """The module, what the target names in it or what that function returns, and a verb that says which."""
    module = _import(target)
    value = _look_up(target, module)
    if not callable(value) or isinstance(value, _keras().Model):
        return module, value, "is of type"
    _check_takes_nothing(target, value)
    with user_code(
        target.text, "when it was called", folder=target.folder, suggestion=_again(target, call=True)
    ):
        return module, value(), "returns something of type"


def _import(target: Target) -> ModuleType:
    with user_code(target.text, "when it was imported", folder=target.folder, suggestion=_again(target)):
        if target.file is not None:
            return import_file(target.file, target.name.partition(".")[0])
        look_in(Path.cwd())
        try:
            return importlib.import_module(target.place)
        except ModuleNotFoundError as error:
            if not f"{target.place}.".startswith(f"{error.name}."):
                raise
            near = _nearest(target.place, sorted(path.stem for path in Path.cwd().glob("*.py")))
            suggestion = f"{target.option}{near[0] if near else 'train'}:{target.name}"
            missing = f"the module {error.name}"
            raise TargetNotFound(target.text, missing, near=near, suggestion=suggestion) from error


def _again(target: Target, *, call: bool = False) -> str:
    """A command that raises the same error, with all of its traceback."""
    module = target.place if target.file is None else target.file.stem
    if all(part.isidentifier() for part in module.split(".")):
        first = target.name.split(".")[0]
        code = f"from {module} import {first}; {target.name}()" if call else f"import {module}"
    else:
        code = f"__import__('{module}')" + (f".{target.name}()" if call else "")
    elsewhere = target.file is not None and target.file.parent != Path.cwd()
    there = f"cd {shlex.quote(os.path.dirname(target.place))} && " if elsewhere else ""  # noqa: PTH120
    return f'{there}python -c "{code}"'


def _look_up(target: Target, module: ModuleType) -> Any:
    value: Any = module
    for name in target.name.split("."):
        if not hasattr(value, name):
            near = _nearest(name, _names_in(value))
            missing = f"the name {name} in {target.place}"
            suggestion = target.with_name(near[0] if near else "model")
            raise TargetNotFound(target.text, missing, near=near, suggestion=suggestion)
        value = getattr(value, name)
    return value


def _names_in(owner: Any) -> list[str]:
    """Public names, without what a module has imported from elsewhere."""
    names = [name for name in vars(owner) if not name.startswith("_")] if hasattr(owner, "__dict__") else []
    if not isinstance(owner, ModuleType):
        return names
    return [name for name in names if _is_of(getattr(owner, name), owner)]


def _is_of(value: Any, module: ModuleType) -> bool:
    if isinstance(value, ModuleType) or type(value).__module__ == "__future__":
        return False
    defined = inspect.isroutine(value) or inspect.isclass(value)
    return not defined or getattr(value, "__module__", None) == module.__name__


def _nearest(name: str, names: list[str]) -> list[str]:
    near = difflib.get_close_matches(name, names, n=_MOST_NAMES, cutoff=0.5)
    return [*near, *(other for other in names if other not in near)][:_MOST_NAMES]


def _check_takes_nothing(target: Target, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function that is not written in Python may not say
        return
    try:
        signature.bind()
    except TypeError as error:
        raise WrongTarget(
            target.text,
            f"takes arguments: {signature}",
            expected="a function without arguments",
            suggestion=f"{target.with_name('build')}, with `def build(): return {target.name}(...)` in it",
        ) from error


@dataclass(frozen=True)
class Loaded:
    """The model and data that a command works on, and the function that shows its progress."""

    model: Any
    data: Any
    tell: Callable[[str], None]


class UserModel:
    """The location of a model, and of data for it if any was named; nothing of it has run yet."""

    def __init__(self, target: str, data: str | None) -> None:
        self._target = target
        self._where, self._data = find_model(target), None if data is None else find_data(data)
        check_installed()

    @contextmanager
    def loaded(self, *, quiet: bool) -> Iterator[Loaded]:
        """Load both; what is raised inside is the user's own, and what is printed is set aside."""
        with output_set_aside(), waiting(f"Loading {self._target}", quiet=quiet) as tell:
            model = load_model(self._where)
            data = None if self._data is None else load_data(self._data)
            suggestion = "model.train_on_batch(x, y), which raises the same"
            folder = self._where.folder
            with user_code(self._target, "when its step was traced", folder=folder, suggestion=suggestion):
                yield Loaded(model, data, tell)
