"""Keras' own methods put behind the guard, for scripts that know nothing of memfit."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memfit.supervision.desks import Desk, tell

_OTHERS = ("evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@dataclass(frozen=True)
class Leave:
    """What may be done for a script: the levers, and whether anything is planned at all."""

    budget_bytes: int | None
    allow: tuple[str, ...]
    plans: bool = True


class Patches:
    """The methods of `keras.Model` for as long as this process lives; not in those that it forks."""

    def __init__(self, leave: Leave, desk: Desk) -> None:
        self._leave, self._desk = leave, desk
        self._trainings = 0
        self._process = os.getpid()
        self._inside = threading.local()
        self._told: set[str] = set()

    def install(self) -> None:
        """Put them in place of Keras' own."""
        import keras

        if keras.config.backend() != "tensorflow":
            tell(f"Keras computes with {keras.config.backend()}: nothing is guarded.")
            return
        ways: dict[str, Callable[..., Any]] = {
            "fit": self._fit,
            **{name: functools.partial(self._protected, name) for name in _OTHERS},
        }
        for name, way in ways.items():
            setattr(keras.Model, name, self._patched(getattr(keras.Model, name), way))

    def _patched(self, original: Callable[..., Any], way: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(model: Any, *arguments: Any, **options: Any) -> Any:
            if getattr(self._inside, "is_busy", False) or os.getpid() != self._process:
                return original(model, *arguments, **options)  # the guard itself, or a forked process
            bound = signature.bind(model, *arguments, **options).arguments  # or TypeError, as ever
            bound.pop("self")
            bound |= bound.pop("kwargs", {})
            with self._busy():
                return way(original, model, bound)

        return call

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._inside.is_busy = True
        try:
            yield
        finally:
            self._inside.is_busy = False

    def _fit(self, original: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
        from memfit import api
        from memfit.errors import CannotGuard
        from memfit.runs.computations import is_keras_own
        from memfit.runs.protections import protection_of
        from memfit.supervision.trainings import Training

        if not getattr(model, "compiled", False):
            return original(model, **given)  # Keras says what is wrong
        self._trainings += 1
        training = Training(self._desk, self._trainings, model, given)
        protection = protection_of(model)
        if protection is not None:  # the script's own memfit.fit or memfit.protect
            protection.let_watch(training)
            return training.run(lambda given, _: original(model, **given))
        if not is_keras_own(model, "fit"):
            return training.run(lambda given, _: self._protected("fit", original, model, given))
        planned: dict[str, Any] = {}
        if self._leave.plans and self._leave.budget_bytes is not None:
            planned = {"budget": self._leave.budget_bytes, "allow": self._leave.allow}
        try:
            return training.run(lambda given, settled: api.fit(model, **given, **settled or planned))
        except CannotGuard as error:
            self._say_why_not(error)
            return training.run(lambda given, _: original(model, **given))

    def _protected(self, name: str, original: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
        from memfit.devices import find_budget
        from memfit.errors import CannotGuard
        from memfit.runs.computations import is_keras_own
        from memfit.runs.protections import Protection, protection_of

        if protection_of(model) is not None:
            return original(model, **given)
        try:
            protection = Protection(model, budget=find_budget(None))
        except CannotGuard as error:
            self._say_why_not(error)
            return original(model, **given)
        if not is_keras_own(model, name):  # a method of the user's own has called Keras' one
            with protection.attached(keep_steps=True):
                return original(model, **given)
        with protection.attached_to_calls(keep_steps=True):
            return getattr(model, name)(**given)

    def _say_why_not(self, error: Exception) -> None:
        """Once for each reason."""
        reason = str(error).splitlines()[0]
        if reason not in self._told:
            self._told.add(reason)
            tell(f"Not guarded: {reason}")
