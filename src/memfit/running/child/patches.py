"""Keras' own methods put behind the guard when Keras is imported, for scripts that know nothing of memfit."""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from memfit.private.patching import AfterImport
from memfit.running.checkpoints.store import ChildContext
from memfit.running.journal.events import UnguardedEvent
from memfit.running.journal.run_folder import tell

if TYPE_CHECKING:
    from memfit.running.child.training import TrainingByBatches


def line_outside_guard() -> str | None:
    """The user's line that is under way; None where the guard has called it."""
    from memfit import guarding
    from memfit.core.user_code import is_library, shown_line
    from memfit.private.tensorflow.function_graphs import stack

    frames, guard = stack(), str(Path(guarding.__file__).parent)
    if any(frame.filename.startswith(guard) for frame in frames):
        return None
    own = [frame for frame in frames if not is_library(frame.filename)]
    return shown_line(own[-1].filename, own[-1].lineno) if own else None


_OTHERS = ("evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def seed_everything(seed: int) -> None:
    """Have Python, NumPy and TensorFlow draw the same in each attempt, unless the script seeds them."""
    random.seed(seed)
    AfterImport("numpy", lambda: _seed_numpy(seed)).install()
    AfterImport("tensorflow", lambda: _seed_tensorflow(seed)).install()


def _seed_numpy(seed: int) -> None:
    sys.modules["numpy"].random.seed(seed)


def _seed_tensorflow(seed: int) -> None:
    sys.modules["tensorflow"].random.set_seed(seed)


@dataclass(frozen=True)
class PlanningOptions:
    """The options for planning each `fit` of a script: the budget, the levers, and whether it is planned."""

    budget_bytes: int | None
    allow: tuple[str, ...]
    plans: bool = True


class Patches:
    """The methods of `keras.Model` for as long as this process lives; not in those that it forks."""

    def __init__(self, planning: PlanningOptions, context: ChildContext) -> None:
        self._planning, self._context = planning, context
        self._trainings = 0
        self._by_batches: WeakKeyDictionary[Any, TrainingByBatches] = WeakKeyDictionary()
        self._process = os.getpid()
        self._inside = threading.local()
        self._told: set[str] = set()

    def install(self) -> None:
        """Put them in place of Keras' own."""
        import keras

        if keras.config.backend() != "tensorflow":
            self._say_unguarded(f"Keras computes with {keras.config.backend()}, not with TensorFlow")
            return
        ways: dict[str, Callable[..., Any]] = {
            "fit": self._fit,
            **{name: functools.partial(self._protected, name) for name in _OTHERS},
        }
        for name, way in ways.items():
            setattr(keras.Model, name, self._patched(getattr(keras.Model, name), way))
        self._look_for_loops(keras.optimizers.Optimizer)

    def warn_of_keras_2(self) -> None:
        """Say that Keras 2, which is a package of its own, trains unguarded."""
        self._say_unguarded("tf_keras is Keras 2; memfit guards Keras 3")

    def _look_for_loops(self, optimizer_class: Any) -> None:
        """Say where a loop of the script's own applies gradients; once, then all is as it was."""
        original = optimizer_class.apply

        @functools.wraps(original)
        def apply(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            if not getattr(self._inside, "is_busy", False) and os.getpid() == self._process:
                line = line_outside_guard()
                if line is not None:
                    optimizer_class.apply = original
                    what = "applies gradients in a loop of its own"
                    self._say_unguarded(f"{line} {what}; memfit.step(...) guards such loops")
            return original(optimizer, *arguments, **options)

        optimizer_class.apply = apply

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
        from memfit.api import fit
        from memfit.core.errors import CannotGuard
        from memfit.guarding.protection import protection_of
        from memfit.model.training_data import is_keras_own
        from memfit.running.child.training import Training

        if not getattr(model, "compiled", False):
            return original(model, **given)  # Keras says what is wrong
        self._trainings += 1
        training = Training(self._context, self._trainings, model, given)
        protection = protection_of(model)
        if protection is not None:  # the script's own memfit.fit or memfit.protect
            protection.let_observe(training)
            return training.run(lambda given, _: original(model, **given))
        if not is_keras_own(model, "fit"):
            return training.run(lambda given, _: self._protected("fit", original, model, given))
        planned: dict[str, Any] = {}
        if self._planning.plans and self._planning.budget_bytes is not None:
            planned = {"budget": self._planning.budget_bytes, "allow": self._planning.allow}
        try:
            return training.run(lambda given, settled: fit(model, **given, **settled or planned))
        except CannotGuard as error:
            self._say_unguarded(error.reason)
            return training.run(lambda given, _: original(model, **given))

    def _protected(self, name: str, original: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
        from memfit.core.errors import CannotGuard
        from memfit.guarding.protection import Protection, protection_of
        from memfit.machine import find_budget
        from memfit.model.training_data import is_keras_own

        if protection_of(model) is not None:
            return original(model, **given)
        try:
            protection = Protection(model, budget=find_budget(None))
        except CannotGuard as error:
            self._say_unguarded(error.reason)
            return original(model, **given)
        if name == "train_on_batch":
            self._plan_steps(model, protection)
        if not is_keras_own(model, name):  # a method of the user's own has called Keras' one
            with protection.attached(keep_steps=True):
                return original(model, **given)
        with self._counted(name, model, protection, given), protection.attached_to_calls(keep_steps=True):
            return getattr(model, name)(**given)

    def _plan_steps(self, model: Any, protection: Any) -> None:
        """Have the micro-batches of `train_on_batch` planned at its first batch; other levers end with it."""
        from memfit.core.records.plans import AllowedLevers
        from memfit.guarding.fit_request import FitRequest
        from memfit.guarding.protection import has_been_trained
        from memfit.machine import find_budget, limit_in_force
        from memfit.planning.planned_fit import FitPlanning

        if not self._planning.plans or limit_in_force() is None or has_been_trained(model):
            return
        request = FitRequest(model, {}, find_budget(None), is_planned=True)
        allowed = AllowedLevers(("micro_batch",) if "micro_batch" in self._planning.allow else ())
        planning = FitPlanning(request, allowed, has_budget=False, may_plan=True)
        protection.plan_at_first_batch(functools.partial(planning.at_first_batch, protection))

    def _counted(
        self, name: str, model: Any, protection: Any, given: dict[str, Any]
    ) -> AbstractContextManager[None]:
        """A scope that writes the step in it down, where it is one of a loop over `train_on_batch`."""
        from memfit.running.child.training import TrainingByBatches

        if name != "train_on_batch":
            return nullcontext()
        if model not in self._by_batches:
            self._trainings += 1
            self._by_batches[model] = TrainingByBatches(self._context, self._trainings)
        return self._by_batches[model].step(model, protection, given.get("x"))

    def finish(self) -> None:
        """The script has come to a good end, and with it the trainings whose end only the script knows."""
        for training in self._by_batches.values():
            training.finish()

    def _say_unguarded(self, reason: str) -> None:
        """Say and write down what trains without the guard, once for each reason."""
        if reason not in self._told:
            self._told.add(reason)
            tell(f"Not guarded: {reason}.")
            self._context.journal.write(UnguardedEvent(reason))
