"""A model whose `fit`, `evaluate`, `predict` and their kin go through the guard, for a while."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from memfit.core.errors import CannotGuard
from memfit.core.records import Budget, MicroBatchChange, Plan, Run
from memfit.guarding.fit_request import FitRequest
from memfit.guarding.guard import Guard, Guarded, Phase
from memfit.guarding.host_arrays import Hosts
from memfit.guarding.micro_batch_size import Ladder
from memfit.guarding.run_notes import Observer, RunNotes, observer_in_force, start_counting_the_peak
from memfit.guarding.splittability import build_for
from memfit.guarding.step.batches import Batch, DeviceBatch, join_rows, on_host
from memfit.guarding.step.computation import Computation, ModelStep, Prediction
from memfit.guarding.step.rollback import optimizers_kept_whole
from memfit.levers.rematerialised import REMAT
from memfit.machine import is_oom
from memfit.machine.limits import SPARE_PIECE
from memfit.model.snapshots import TracedDraws, data_draws_meanwhile
from memfit.model.training_data import is_keras_own, is_left_out, is_made_by_python
from memfit.private.keras.layers import all_layers
from memfit.private.keras.losses_and_metrics import output_trackers
from memfit.private.keras.trainer import (
    StepWithoutData,
    compiled_parts,
    predictions_on_host,
    strategy_of,
)
from memfit.private.patching import overridden


def fit_guarded(request: FitRequest) -> Any:
    """Keras' own `fit` with the guard attached; its History gets `.run`."""
    model, arguments = request.model, request.arguments
    protection = Protection(
        model,
        budget=request.budget,
        micro_batch_size=request.micro_batch_size,
        is_planned=request.is_planned,
        one_phase=request.one_phase,
        replay=request.replay,
    )
    protection.follow(request.plan, request.notes)
    if request.at_first_batch is not None:
        protection.plan_at_first_batch(functools.partial(request.at_first_batch, protection))
    if not getattr(model, "compiled", False):
        raise CannotGuard("the model is not compiled", suggestion='model.compile("adam", "mse")')
    if is_keras_own(model, "fit"):
        arguments = protection.hosts.take("fit", arguments, validation=is_keras_own(model, "evaluate"))
    try:
        with protection.attached(keep_steps=True), _reading(model, arguments):
            history = model.fit(**arguments)
    finally:
        if protection.notes.plan is not None:
            protection.ladder().forget_whole(protection.notes.plan.batch_size)
        request.at_end(protection.run)
    history.run = protection.run
    return history


def _reading(model: Any, arguments: dict[str, Any]) -> AbstractContextManager[None]:
    """A context in which a model is given its data, for a call of `fit`, `evaluate` or `predict`."""
    made = any(is_made_by_python(arguments.get(name)) for name in ("x", "validation_data"))
    return data_draws_meanwhile(model) if made else nullcontext()


# Under this name a model keeps its traced steps from one `memfit.fit` to the next, as Keras keeps its own.
_KEPT = "_memfit_guarded_steps"
_PROTECTION = "_memfit_protection"  # and the guard that stands before it, as long as it does

_FUNCTIONS = ("train_function", "test_function", "predict_function")
_STEPS: dict[Phase, str] = {
    "gradients": "train_step",
    "evaluation": "test_step",
    "prediction": "predict_step",
}


class Protection:
    """Stands between a model and the functions that Keras runs its batches with."""

    def __init__(
        self,
        model: Any,
        *,
        budget: Budget,
        micro_batch_size: int | None = None,
        is_planned: bool = False,
        one_phase: bool = False,
        replay: tuple[MicroBatchChange, ...] = (),
    ) -> None:
        """A size that is only planned gives way where batches cannot be split."""
        _check_guardable(model)
        self.model = model
        self.notes = RunNotes(budget)
        self.hosts = Hosts()
        self._guard = Guard(self.notes, replay=replay)
        self._start, self._one_phase = micro_batch_size, one_phase
        self._is_asked = micro_batch_size is not None and not is_planned
        self._kept: _Kept = vars(model).get(_KEPT) or _Kept()
        self._kept.drop_all_but(self._compiled())
        self._current: dict[Phase, Guarded] = {}
        self._static_batches = True
        self._step_without_data = StepWithoutData(model)
        self._goes_on_from: Ladder | None = None
        self._plan_for: Callable[[Batch], None] | None = None
        self._draws: TracedDraws | None = None  # of the step that was built to be planned
        self._observer: Observer | None = None
        if (one := observer_in_force()) is not None:
            self.let_observe(one)

    @property
    def run(self) -> Run:
        """The record of the run so far."""
        return self.notes.run()

    def let_observe(self, observer: Observer) -> None:
        """Let an observer see what happens."""
        self._observer = observer
        observer.attached(self)

    def follow(self, plan: Plan | None, notes: Iterable[str] = ()) -> None:
        """Write down the plan that training follows, and say what there is to say about it."""
        self.notes.plan = plan
        for note in notes:
            self.notes.tell(note)

    def plan_at_first_batch(self, plan_for: Callable[[Batch], None]) -> None:
        """Have training planned when its first batch is there and the model is built for it."""
        self._plan_for = plan_for

    def begin_at(self, micro_batch_size: int | None, *, one_phase: bool = False) -> None:
        """Begin training on micro-batches of this size."""
        self._start, self._one_phase = micro_batch_size, one_phase

    @contextmanager
    def attached(self, *, keep_steps: bool = False) -> Iterator[None]:
        """While this is open the model's batches go through the guard; afterwards it is as before."""
        model, compiled = self.model, self._compiled()
        before = self._functions()
        start_counting_the_peak()
        try:
            with ExitStack() as overrides:
                for name, phase, function in (
                    ("train_function", "gradients", self._train_function),
                    ("test_function", "evaluation", self._test_function),
                    ("predict_function", "prediction", self._predict_function),
                ):
                    make = self._maker(name, phase, function)  # type: ignore[arg-type]
                    overrides.enter_context(overridden(model, f"make_{name}", make))
                overrides.enter_context(overridden(model, "predict", self._predict_on_host(model.predict)))
                overrides.enter_context(overridden(model, _PROTECTION, self))
                yield
        finally:
            SPARE_PIECE.give_back()
            for name, function in before.items():
                setattr(model, name, function if self._compiled() == compiled else None)
            if keep_steps:
                vars(model)[_KEPT] = self._kept

    @contextmanager
    def attached_to_calls(self, *, keep_steps: bool = False) -> Iterator[None]:
        """The same, and arrays that are given to `fit`, `evaluate` and `predict` stay on the host."""
        with self.attached(keep_steps=keep_steps), ExitStack() as overrides:
            for name in ("fit", "evaluate", "predict"):
                if is_keras_own(self.model, name) or name == "predict":
                    overrides.enter_context(overridden(self.model, name, self._hosting(name)))
            yield

    def _hosting(self, name: str) -> Callable[..., Any]:
        method = getattr(self.model, name)
        signature = inspect.signature(getattr(keras.Model, name))

        def call(*arguments: Any, **options: Any) -> Any:
            if "_use_cached_eval_dataset" in options:  # `fit` calling `evaluate`
                return method(*arguments, **options)
            bound = signature.bind(self.model, *arguments, **options).arguments
            bound.pop("self")
            validation = is_keras_own(self.model, "evaluate") or "evaluate" in vars(self.model)
            with _reading(self.model, bound):
                return method(**self.hosts.take(name, bound, validation=validation))

        return call

    def _predict_on_host(self, predict: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with predictions_on_host(_join_batches):
                return predict(*arguments, **options)

        return call

    def _maker(self, name: str, phase: Phase, function: Callable[..., Any]) -> Callable[..., None]:
        def make(force: bool = False) -> None:
            del force
            self._current.pop(phase, None)
            setattr(self.model, name, function)

        return make

    def _compiled(self) -> tuple[Any, ...]:
        return compiled_parts(self.model)

    def _train_function(self, iterator: Iterator[Any]) -> Any:
        """The function that Keras calls for each step of an epoch: fetch the batch, then train on it."""
        return self._for_each_batch(iterator, "gradients")

    def _test_function(self, iterator: Iterator[Any]) -> Any:
        """The function that Keras calls for each step of an evaluation: fetch the batch, then evaluate it."""
        return self._for_each_batch(iterator, "evaluation")

    def _predict_function(self, elements: list[Any]) -> Any:
        """The function that Keras calls for some batches of a prediction."""
        outputs = [on_host(self._run("prediction", self.batch_of(element))) for element in elements]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *batches: join_rows(list(batches)), *outputs)

    def _for_each_batch(self, iterator: Iterator[Any], phase: Phase) -> Any:
        logs: Any = None
        self._static_batches = self.model.run_eagerly or _has_static_batches(iterator)
        for number in range(self.model.steps_per_execution):
            try:
                element = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if number == 0:
                    if phase == "gradients" and isinstance(iterator, tf.data.Iterator):
                        self._step_without_data.happen()
                    raise
                break
            batch = self.batch_of(element)
            if phase == "gradients":
                self._plan(batch)
                if self._observer is not None:
                    self._observer.saw(batch)
            with self._step_without_data.watched() if phase == "gradients" else nullcontext():
                logs = self._run(phase, batch)
        return logs

    def _plan(self, batch: Batch) -> None:
        """Have training planned for its first batch, if it is to be."""
        if self._plan_for is None:
            return
        plan_for, self._plan_for = self._plan_for, None
        computation = self._computation("gradients")
        try:
            with optimizers_kept_whole(self.model):
                build_for(computation, batch)
        except Exception as error:
            if not is_oom(error):
                raise
            return  # the guard says what does not fit
        self._draws = computation.draws
        functions = self._functions()
        plan_for(batch)
        for name, function in functions.items():  # which levers let go of, as of all that was traced
            setattr(self.model, name, function)

    def _functions(self) -> dict[str, Any]:
        """The functions that Keras runs the batches of a model with."""
        return {name: getattr(self.model, name) for name in _FUNCTIONS}

    def ladder(self) -> Ladder:
        """The ladder of the micro-batches of training, where it is now."""
        return self._kept.ladders.setdefault("gradients", Ladder())

    def go_on_from(self, ladder: Ladder) -> None:
        """Begin training where another ladder was."""
        self._goes_on_from = ladder

    def _run(self, phase: Phase, batch: Batch) -> Any:
        if phase not in self._current:
            self._current[phase] = self._guarded(phase)
        return self._guard.run(self._current[phase], batch)

    def _guarded(self, phase: Phase) -> Guarded:
        """The step of a phase; that of before if nothing has changed that it was traced with."""
        key = self._key(phase)
        kept_key, guarded = self._kept.steps.get(phase, (None, None))
        if guarded is None or kept_key != key:
            ladder = self._kept.ladders.setdefault(phase, Ladder())
            guarded = Guarded(self._computation(phase), phase, ladder)
            if phase == "gradients" and self._draws is not None:
                guarded.computation.draws, self._draws = self._draws, None
            self._kept.steps[phase] = (key, guarded)
        guarded.asked = phase == "gradients" and self._is_asked
        if phase == "gradients" and self._start is not None:
            guarded.ladder.start_at(self._start)
            guarded.one_phase = self._one_phase
            self._start = None  # from there on it goes its own way
        if phase == "gradients" and self._goes_on_from is not None:
            guarded.ladder.go_on_as(self._goes_on_from)
            self._goes_on_from = None
        return guarded

    def _computation(self, phase: Phase) -> Computation:
        if phase == "prediction":
            return Prediction(self.model)
        return ModelStep(self.model, _STEPS[phase], weigh_outputs_by_samples=self._static_batches)

    def _key(self, phase: Phase) -> tuple[Any, ...]:
        """The key of a trace; objects, so that none of them can be another's successor by chance."""
        model = self.model
        return (
            *map(_Same, self._compiled()),
            tuple(layer.compute_dtype for layer in all_layers(model)),
            getattr(model, "run_eagerly", None),
            getattr(model, "jit_compile", None),
            bool(output_trackers(model)) and self._static_batches if model.compiled else None,
            vars(model).get(_STEPS[phase]),
            _Same(vars(model).get(REMAT)),
        )

    def batch_of(self, element: Any) -> Batch:
        """The samples that an element of the data pipeline stands for."""
        return self.hosts.batch(element) or DeviceBatch.of(element)


def protection_of(model: Any) -> Protection | None:
    """The guard that stands before a model now."""
    found: Protection | None = vars(model).get(_PROTECTION)
    return found


def has_been_trained(model: Any) -> bool:
    """Whether a model has steps that were traced in an earlier training."""
    return hasattr(model, _KEPT)


def keep_ladder(model: Any, ladder: Ladder) -> None:
    """Let the next training of a model begin where this ladder is."""
    kept: _Kept = vars(model).setdefault(_KEPT, _Kept())
    kept.ladders.setdefault("gradients", Ladder()).go_on_as(ladder)


class _Kept:
    """The traced steps and ladders that stay with a model from one training to the next."""

    def __init__(self) -> None:
        self.steps: dict[Phase, tuple[Any, Guarded]] = {}
        self.ladders: dict[Phase, Ladder] = {}

    def drop_all_but(self, compiled: tuple[Any, ...]) -> None:
        """Let go of steps that were traced with what another `compile` has replaced."""
        current = tuple(map(_Same, compiled))
        self.steps = {
            phase: (key, guarded)
            for phase, (key, guarded) in self.steps.items()
            if key[: len(current)] == current
        }


class _Same:
    """Equal only to itself around the same object, which it keeps alive."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)


def _join_batches(tensors: list[Any]) -> Any:
    """Predictions of all batches, joined on the host; None where Keras has to see to it."""
    if len(tensors) == 1 or not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
        return None
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors if len(tensor.shape)}
    return join_rows(tensors) if len(shapes) == 1 and len(tensors[0].shape) else None


def _has_static_batches(iterator: Any) -> bool:
    """Whether the data pipeline knows the size of its batches: plain Keras weighs some metrics by it."""
    specs = keras.tree.flatten(getattr(iterator, "element_spec", None))
    return all(is_left_out(spec) or spec.shape.rank is None or spec.shape[0] is not None for spec in specs)


def _check_guardable(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise CannotGuard(
            f"expected a keras.Model, received {type(model).__name__}", suggestion="memfit.fit(model, x, y)"
        )
    if strategy_of(model) is not None:
        raise CannotGuard(
            "the model was created under a distribution strategy", suggestion="model.fit(...)  # unguarded"
        )
