"""A pytest plugin for Keras' own tests: the methods of `keras.Model` go one of the ways of `keras_suite`.

The environment says which: KERAS_SUITE_WAY, the file for the events (KERAS_SUITE_EVENTS, one line of JSON for
the start and the end of each test), and the file with the tests to run (KERAS_SUITE_TESTS, all without).
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.backend.tensorflow import trainer as tensorflow_trainer

import memfit
from memfit.model.training_data import is_keras_own

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
WAY = os.environ.get("KERAS_SUITE_WAY", "plain")
BUDGET = "1GiB"
KERAS_BATCH_SIZE = 32
_SIGNS = ("fit(", "evaluate(", "predict(", "_on_batch", "run_", "_test", "check", "_train")


class _Calls:
    """What reaches a method of `keras.Model` while a test runs."""

    def __init__(self) -> None:
        self.count = 0
        self.is_inside = False

    def through(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A method that goes the way, and Keras' own where it is called from within."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def method(model: Any, *arguments: Any, **options: Any) -> Any:
            if self.is_inside:
                return original(model, *arguments, **options)
            self.count += 1
            if WAY in ("plain", "run"):
                return original(model, *arguments, **options)
            given = signature.bind(model, *arguments, **options).arguments
            given.pop("self")
            given |= given.pop("kwargs", {})
            self.is_inside = True
            try:
                return _guarded(name, original, model, given)
            finally:
                self.is_inside = False

        return method


CALLS = _Calls()


def _guarded(name: str, original: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
    """The call as a user of memfit has it."""
    own = is_keras_own(model, name)
    if name == "fit" and own and getattr(model, "compiled", False):
        if WAY == "budget":
            return memfit.fit(model, **given, budget=BUDGET)
        return memfit.fit(model, **given, plan=False, micro_batch_size=_micro_batch_size(given))
    with memfit.protect(model, micro_batch_size=_micro_batch_size(given)):
        return getattr(model, name)(**given) if own else original(model, **given)


def _micro_batch_size(given: dict[str, Any]) -> int | None:
    if WAY == "split":
        return 1
    if WAY != "halves":
        return None
    arrays = [leaf for leaf in keras.tree.flatten(given.get("x")) if isinstance(leaf, np.ndarray)]
    samples = min((len(array) for array in arrays if array.ndim), default=KERAS_BATCH_SIZE)
    return max(1, min(samples, given.get("batch_size") or KERAS_BATCH_SIZE) // 2)


def _tell(**event: Any) -> None:
    with Path(os.environ["KERAS_SUITE_EVENTS"]).open("a") as file:
        file.write(json.dumps(event) + "\n")


class TrainerModel(keras.Model):
    """What the tests of Keras' Trainer mix layers with: a model, since memfit guards models only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _TRAINER.__init__(self, *arguments, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        """Let the layer's own methods come before those of the model, as they do beside a Trainer."""
        super().__init_subclass__(**options)
        of_models = {name for name in vars(keras.Model) if callable(getattr(keras.Model, name))}
        for base in cls.__mro__:
            if issubclass(base, keras.layers.Layer) and not issubclass(base, keras.Model):
                if base is keras.layers.Layer:
                    break
                for name in (of_models & vars(base).keys()) - vars(cls).keys() - {"__init__"}:
                    setattr(cls, name, vars(base)[name])


_TRAINER = tensorflow_trainer.TensorFlowTrainer


def pytest_configure(config: pytest.Config) -> None:
    """Put the methods in place; markers are those of the conftest that wheels of Keras leave out."""
    config.addinivalue_line("markers", "requires_trainable_backend: needs gradients")
    config.addinivalue_line("markers", "multi_device: needs several devices")
    tensorflow_trainer.TensorFlowTrainer = TrainerModel
    for name in METHODS:
        setattr(keras.Model, name, CALLS.through(name, getattr(keras.Model, name)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that are asked for; else those that may reach a method, as their source shows."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        _move_out_of_keras(module)
    path = os.environ.get("KERAS_SUITE_TESTS")
    if path is None:
        wanted = {item.nodeid for item in items if _may_reach(item)}
    else:
        wanted = set(json.loads(Path(path).read_text()))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [item for item in items if item.nodeid in wanted]


def _move_out_of_keras(module: Any) -> None:
    """Let what a test defines be a user's own, as it would be elsewhere, and not a part of Keras."""
    old, new = module.__name__, module.__name__.replace(".", "_")
    sys.modules[new] = module
    module.__name__ = new
    for thing in list(vars(module).values()):
        if inspect.isclass(thing) and thing.__module__ == old and not issubclass(thing, unittest.TestCase):
            thing.__module__ = new


def _may_reach(item: Any) -> bool:
    try:
        source = inspect.getsource(item.function)
    except (OSError, TypeError):
        return True
    return any(name in source for name in _SIGNS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down what runs, so that the one is known that ends the process."""
    CALLS.count = 0
    _tell(test=item.nodeid, began=True)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how it went."""
    if report.when == "call" or report.outcome != "passed":
        reason = "" if report.outcome == "passed" else _reason(report)
        _tell(test=report.nodeid, outcome=report.outcome, calls=CALLS.count, reason=reason)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down the files that need a package that is not there."""
    if report.outcome == "failed":
        _tell(file=report.nodeid, error=str(report.longrepr).strip().splitlines()[-1])


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)[:1500]


if WAY == "budget":
    memfit.limit("4GiB")
