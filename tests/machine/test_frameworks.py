from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from memfit.core.errors import UnsupportedBackend, UnsupportedVersion
from memfit.machine.frameworks import (
    SUPPORTED,
    check_version,
    describe_package,
    find_packages,
    keras_backend,
    load_keras,
)


@pytest.mark.parametrize("version", ["2.18.0", "2.18.1", "2.21.0", "2.21.0rc1"])
def test_supported_versions_pass_in_silence(version: str, caplog: pytest.LogCaptureFixture) -> None:
    check_version("tensorflow", version)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "version"), [("tensorflow", "2.17.1"), ("tensorflow", "1.15.0"), ("keras", "2.15.0")]
)
def test_older_versions_are_refused(name: str, version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=f"Expected: {name} >=.*\n  Received: {name} {version}"):
        check_version(name, version)


def test_newer_versions_are_tried_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "memfit"):
        check_version("tensorflow", "2.22.0")
    assert "newer than memfit was tested with" in caplog.text


def test_what_is_found_says_when_it_is_outside_the_range() -> None:
    assert (
        describe_package("keras", "3.11.0", SUPPORTED["keras"]).warning == "version 3.11.0 is outside >=3.12"
    )
    assert describe_package("keras", None, SUPPORTED["keras"]).warning == "not installed"
    assert describe_package("keras", "3.15.1", SUPPORTED["keras"]).warning is None


def test_the_packages_here_are_found_without_importing_them() -> None:
    assert [package.name for package in find_packages()] == ["python", "tensorflow", "keras"]
    assert all(package.warning is None for package in find_packages())


def test_the_backend_is_known_before_keras_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert keras_backend() == "tensorflow"
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert keras_backend() == "torch"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert keras_backend() == "jax"
    with pytest.raises(UnsupportedBackend, match='Received: "jax"'):
        load_keras()
    (tmp_path / "keras.json").write_text("{")
    monkeypatch.delenv("KERAS_BACKEND")
    assert keras_backend() == "tensorflow"
