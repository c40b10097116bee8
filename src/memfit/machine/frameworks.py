"""TensorFlow and Keras: loaded late, checked once, with clear errors when they cannot be used.

The other modules that need them import them at the top and are themselves imported late, so that
`import memfit` and `memfit --help` stay light.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from memfit.core.errors import TensorFlowMissing, UnsupportedBackend, UnsupportedVersion
from memfit.core.records import Package

logger = logging.getLogger("memfit")

SUPPORTED = {"tensorflow": ">=2.18,<2.22", "keras": ">=3.12"}
SUPPORTED_PYTHON = ">=3.11,<3.14"

_TITLES = {"tensorflow": "TensorFlow", "keras": "Keras"}
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly"),
    "keras": ("keras", "keras-nightly"),
}


def load_tensorflow() -> Any:
    """TensorFlow, or an error that says how to get one that works."""
    return _load("tensorflow")


def load_keras() -> Any:
    """Keras on TensorFlow, or an error that says how to get there."""
    if (backend := keras_backend()) != "tensorflow":
        raise UnsupportedBackend(backend)
    load_tensorflow()
    return _load("keras")


def keras_backend() -> str:
    """The backend that Keras computes with, or will: by the environment, else by its file of settings."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend"):
        return str(keras.backend.backend())
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    settings: Any = None
    with suppress(OSError, ValueError):
        settings = json.loads((folder / "keras.json").read_text())
    by_file = settings.get("backend") if isinstance(settings, dict) else None
    return os.environ.get("KERAS_BACKEND") or str(by_file or "tensorflow")


def uses_keras_2() -> bool:
    """Whether `tf.keras` is Keras 2, by the environment."""
    return os.environ.get("TF_USE_LEGACY_KERAS", "").strip().lower() in ("1", "true")


def tensorflow_is_loaded() -> bool:
    """Whether this process has imported TensorFlow already."""
    return "tensorflow" in sys.modules


def find_packages() -> tuple[Package, ...]:
    """Python, TensorFlow and Keras as installed, without importing them."""
    python = ".".join(map(str, sys.version_info[:3]))
    found = [describe_package("python", python, SUPPORTED_PYTHON)]
    for name, supported in SUPPORTED.items():
        found.append(describe_package(name, _installed_version(name), supported))
    return tuple(found)


def describe_package(name: str, version: str | None, supported: str) -> Package:
    """A package with the warning that its version deserves."""
    if version is None:
        return Package(name, None, supported, "not installed")
    if Version(version) in SpecifierSet(supported, prereleases=True):
        return Package(name, version, supported)
    return Package(name, version, supported, f"version {version} is outside {supported}")


def _installed_version(name: str) -> str | None:
    for distribution in _DISTRIBUTIONS[name]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _load(name: str) -> Any:
    module = sys.modules.get(name)
    version = getattr(module, "__version__", None) or _installed_version(name)
    if version is not None:
        check_version(name, version)
    if module is not None:
        return module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TensorFlowMissing(_TITLES[name], None if error.name == name else str(error)) from error
    except ImportError as error:
        raise TensorFlowMissing(_TITLES[name], str(error)) from error


@functools.cache
def check_version(name: str, version: str) -> None:
    """Refuse what is too old to work; warn of what is newer than what has been tried."""
    supported = SpecifierSet(SUPPORTED[name], prereleases=True)
    if Version(version) in supported:
        return
    oldest = next(part for part in supported if part.operator == ">=")
    if Version(version) < Version(oldest.version):
        raise UnsupportedVersion(name, received=version, expected=SUPPORTED[name])
    logger.warning("%s %s is newer than memfit was tested with (%s).", name, version, SUPPORTED[name])


def check_installed() -> None:
    """Refuse early, without the seconds that importing takes, when TensorFlow or Keras cannot be used."""
    for name in SUPPORTED:
        installed = _installed_version(name)
        if installed is not None:
            check_version(name, installed)
        elif importlib.util.find_spec(name) is None:
            raise TensorFlowMissing(_TITLES[name])


def first_gpu() -> Any:
    """The first GPU that TensorFlow sees, or None; None too before TensorFlow is imported."""
    if not tensorflow_is_loaded():
        return None
    return next(iter(load_tensorflow().config.list_physical_devices("GPU")), None)


def first_device() -> str:
    """The device that training runs on: the first GPU, else the CPU."""
    load_tensorflow()
    return "GPU:0" if first_gpu() else "CPU:0"
