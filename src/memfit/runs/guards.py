"""model + data -> Run: every step of training and evaluation guarded."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

import keras
import tensorflow as tf

from memfit.devices import device_memory, host_memory, is_oom, limit_in_force, read_oom, reset_peak
from memfit.errors import CannotGuard, DoesNotFit, NotMeasurable
from memfit.records import Budget, MicroBatchChange, OutOfMemory, Run, SurvivedOOM
from memfit.runs import keras_internals
from memfit.runs.batches import Batch, DeviceBatch, HostArrays, parts
from memfit.runs.keras_internals import overridden
from memfit.runs.ladders import Ladder
from memfit.runs.shares import what_a_split_changes
from memfit.runs.steps import EvaluationStep, Logs, StagedStep, TwoPhaseStep
from memfit.units import format_size

logger = logging.getLogger("memfit")

Step = TypeVar("Step", TwoPhaseStep, EvaluationStep)
Phase = Literal["gradients", "evaluation"]

# Where the last training of a model ended, so that the next one need not run out again to find it.
_last_rungs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Guard:
    """Trains and evaluates a model batch by batch so that an out-of-memory error costs only time."""

    def __init__(self, model: Any, *, budget: Budget, micro_batch_size: int | None = None) -> None:
        _check_guardable(model)
        self.model = model
        self.evaluates = is_keras_own(model, "test_step")
        self.hosts: dict[str, HostArrays] = {}  # by the name under which the pipeline carries their indices
        self._budget = budget
        self._ladders = {
            "gradients": Ladder(micro_batch_size or _last_rungs.get(model)),
            "evaluation": Ladder(None),
        }
        self._training: TwoPhaseStep | None = None
        self._evaluation: EvaluationStep | None = None
        self._static_batches = True
        self._steps = 0
        self._micro_batches: list[MicroBatchChange] = []
        self._ooms: list[SurvivedOOM] = []
        self._notes: list[str] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While this is open, the model's `fit` goes through the guard; afterwards it is as before."""
        model, before = self.model, (self.model.train_function, self.model.test_function)

        def make_train_function(force: bool = False) -> None:
            del force
            model.train_function = self.train_function

        def make_test_function(force: bool = False) -> None:
            del force
            model.test_function = self.test_function

        _reset_peak()
        try:
            with ExitStack() as overrides:
                overrides.enter_context(overridden(model, "make_train_function", make_train_function))
                if self.evaluates:
                    overrides.enter_context(overridden(model, "make_test_function", make_test_function))
                yield
        finally:
            model.train_function, model.test_function = before

    def run(self) -> Run:
        """What has happened so far."""
        return Run(
            budget=self._budget,
            steps=self._steps,
            micro_batches=tuple(self._micro_batches),
            ooms=tuple(self._ooms),
            peak_bytes=_read_peak(),
            notes=tuple(self._notes),
        )

    def train_function(self, iterator: Iterator[Any]) -> Logs:
        """What Keras calls for each step of an epoch: fetch the batch, then train on it."""
        return self._for_each_batch(iterator, self.train_on)

    def test_function(self, iterator: Iterator[Any]) -> Logs:
        """What Keras calls for each step of an evaluation: fetch the batch, then evaluate on it."""
        return self._for_each_batch(iterator, self.evaluate_on)

    def _for_each_batch(self, iterator: Iterator[Any], work: Callable[[Batch], Logs]) -> Logs:
        logs: Logs | None = None
        self._static_batches = self.model.run_eagerly or _has_static_batches(iterator)
        for _ in range(self.model.steps_per_execution):
            try:
                element = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break
            logs = work(self._batch_of(element))
        assert logs is not None
        return logs

    def _batch_of(self, element: Any) -> Batch:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(element)
        if isinstance(x, dict):
            for name, arrays in self.hosts.items():
                if name in x:
                    return arrays.batch(x[name].numpy())
        return DeviceBatch.of(element)  # also what a callback trains on in between

    def train_on(self, batch: Batch) -> Logs:
        """One training step on one batch, split and tried again as often as it takes."""
        if self._training is None:
            self._training = self._prepare(batch, TwoPhaseStep)
        step = self._training
        logs = self._run_parts(step, batch, "gradients")
        self._commit(step, self._ladders["gradients"].size_for(batch.size))
        self._steps += 1
        return logs

    def evaluate_on(self, batch: Batch) -> Logs:
        """One step of evaluation on one batch, split and tried again as often as it takes."""
        if self._evaluation is None:
            self._evaluation = self._prepare(batch, EvaluationStep)
        logs = self._run_parts(self._evaluation, batch, "evaluation")
        self._evaluation.commit()
        return logs

    def _commit(self, step: TwoPhaseStep, micro_batch_size: int) -> None:
        began = time.perf_counter()
        try:
            survived = step.commit()
        except Exception as error:
            if not is_oom(error):
                raise
            raise self._does_not_fit("the update of the weights", error) from error
        if survived is not None:
            size, seconds, oom = micro_batch_size, time.perf_counter() - began, read_oom(survived)
            self._ooms.append(SurvivedOOM(self._steps, "commit", size, size, seconds, oom))
            self._tell(
                f"The update of step {self._steps + 1} ran out {oom.describe()} and was taken back. "
                "Going on with the old weights copied to the host before each update."
            )

    def _prepare(self, batch: Batch, kind: type[Step]) -> Step:
        try:
            keras_internals.build_everything(self.model, batch.part(0, min(batch.size, 2)))
            return kind(self.model, weigh_outputs_by_samples=self._static_batches)
        except Exception as error:
            if not is_oom(error):
                raise
            raise self._does_not_fit("what weights and optimizer need", error) from error

    def _run_parts(self, step: StagedStep, batch: Batch, phase: Phase) -> Logs:
        """Phase one, on smaller and smaller micro-batches until it goes through."""
        while True:
            micro_batch_size = self._ladders[phase].size_for(batch.size)
            began = time.perf_counter()
            try:
                logs = self._try_parts(step, batch, micro_batch_size)
            except Exception as error:
                if not is_oom(error):
                    raise
                self._step_down(step, batch, phase, error, seconds=time.perf_counter() - began)
                continue
            if step.why_not_split is not None:
                self._tell_once(f"Batches of this model cannot be split: {step.why_not_split}.")
            if phase == "gradients":
                self._note_micro_batch(micro_batch_size, batch.size)
            return logs

    def _try_parts(self, step: StagedStep, batch: Batch, micro_batch_size: int) -> Logs:
        step.begin(batch.size)
        logs: Logs = {}
        for part in parts(batch, micro_batch_size):
            _check_splittable(step, batch.size, micro_batch_size)
            logs = step.add_part(part)
        _check_splittable(step, batch.size, micro_batch_size)  # tracing may have found an obstacle
        return logs

    def _step_down(
        self, step: StagedStep, batch: Batch, phase: Phase, error: Exception, *, seconds: float
    ) -> None:
        ladder = self._ladders[phase]
        before = ladder.size_for(batch.size)
        if step.why_not_split is not None:
            what = f"a step on {batch.size} samples"
            raise self._does_not_fit(what, error, f"It cannot be split: {step.why_not_split}.") from error
        after = ladder.step_down(batch.size)
        if after is None:
            raise self._does_not_fit("a step on one sample", error) from error
        oom = read_oom(error)
        if phase == "gradients":
            _last_rungs[self.model] = after
        self._ooms.append(SurvivedOOM(self._steps, phase, before, after, seconds, oom))
        self._tell_split(phase, oom, before, after)
        if step.without_xla():
            self._tell("After an out-of-memory error XLA may abort the process: going on without XLA.")

    def _tell_split(self, phase: Phase, oom: OutOfMemory, before: int, after: int) -> None:
        what = f"Step {self._steps + 1}" if phase == "gradients" else f"Evaluation after step {self._steps}"
        self._tell(
            f"{what} ran out of memory at micro-batch {before}, {oom.describe()}. "
            f"Going on with micro-batches of {after}, on the same samples."
        )

    def _tell(self, note: str) -> None:
        self._notes.append(note)
        logger.warning("%s", note)

    def _tell_once(self, note: str) -> None:
        if note not in self._notes:
            self._tell(note)

    def _note_micro_batch(self, size: int, batch_size: int) -> None:
        before = self._micro_batches[-1].micro_batch_size if self._micro_batches else None
        ragged = before is not None and batch_size == size < before  # the short batch that ends an epoch
        if size == before or ragged:
            return
        self._micro_batches.append(MicroBatchChange(self._steps, size))
        if size < batch_size:
            for note in what_a_split_changes(self.model):
                self._tell_once(note)

    def _does_not_fit(self, what: str, error: Exception, *reasons: str) -> DoesNotFit:
        limit_bytes = limit_in_force()
        limit = "no limit is in force" if limit_bytes is None else f"the limit is {format_size(limit_bytes)}"
        return DoesNotFit(
            f"{what} does not fit: {limit}.",
            f"It ran out {read_oom(error).describe()}.",
            *reasons,
            f"The model is as it was after step {self._steps}.",
            suggestion=_more_room(limit_bytes),
            limit_bytes=limit_bytes,
        )


def _more_room(limit_bytes: int | None) -> str:
    """Twice the limit where the machine has it; else all that is left is a smaller model."""
    if limit_bytes is None or 2 * limit_bytes > host_memory().usable_total_bytes:
        return "a smaller model or smaller samples; memfit doctor shows the memory there is"
    return f'memfit.limit("{2 * limit_bytes >> 20}MiB")'


def _check_splittable(step: StagedStep, batch_size: int, micro_batch_size: int) -> None:
    if micro_batch_size < batch_size and step.why_not_split is not None:
        raise CannotGuard(
            f"a batch of {batch_size} would have to be split, but {step.why_not_split}",
            suggestion=f"batch_size={micro_batch_size}",
        )


def is_keras_own(model: Any, method: str) -> bool:
    """Whether a model has Keras' own method of this name, neither overridden nor replaced."""
    return method not in vars(model) and getattr(type(model), method) is getattr(keras.Model, method)


def _check_guardable(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise CannotGuard(
            f"expected a keras.Model, received {type(model).__name__}", suggestion="memfit.fit(model, x, y)"
        )
    if not getattr(model, "compiled", False):
        raise CannotGuard("the model is not compiled", suggestion='model.compile("adam", "mse")')
    if keras_internals.strategy_of(model) is not None:
        raise CannotGuard(
            "the model was created under a distribution strategy", suggestion="model.fit(...)  # unguarded"
        )
    for name in ("train_step", "compute_loss"):
        if not is_keras_own(model, name):
            raise CannotGuard(
                f"{type(model).__name__} has its own {name}", suggestion="model.fit(...)  # unguarded"
            )


def _has_static_batches(iterator: Any) -> bool:
    """Whether the data pipeline knows the size of its batches: plain Keras weighs some metrics by it."""
    specs = keras.tree.flatten(getattr(iterator, "element_spec", None))
    return all(spec is None or spec.shape.rank is None or spec.shape[0] is not None for spec in specs)


def _reset_peak() -> None:
    try:
        reset_peak()
    except NotMeasurable:
        return


def _read_peak() -> int | None:
    try:
        return device_memory().peak_bytes
    except NotMeasurable:
        return None
