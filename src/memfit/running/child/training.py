"""One `fit` of a supervised script: begun, gone on with where it was, or known to be over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from memfit.core.errors import CannotResume
from memfit.core.records import Plan
from memfit.guarding.micro_batch_size import Ladder
from memfit.guarding.protection import Protection, keep_ladder
from memfit.guarding.run_notes import observed_by
from memfit.guarding.step.batches import Batch
from memfit.model.training_data import batches_of
from memfit.planning.run_history import fingerprint_of
from memfit.private.keras.trainer import (
    build_everything,
    first_iterator_from,
    is_built,
    metrics_where_no_step_ran,
)
from memfit.running.checkpoints import training_state
from memfit.running.checkpoints.format import Array, decode, encode
from memfit.running.checkpoints.store import ChildContext
from memfit.running.checkpoints.training_state import Progress, Variables
from memfit.running.child.input_data import InputPipelines, Position, TrainingData
from memfit.running.child.monitor import StepReadings
from memfit.running.journal import events
from memfit.running.journal.run_folder import read_events, tell

Train = Callable[[dict[str, Any], dict[str, Any]], Any]
Saved = tuple[Progress, dict[str, Array]]


class Training:
    """A training by its number in the script; an observer of the guard while it runs."""

    def __init__(self, context: ChildContext, number: int, model: Any, given: dict[str, Any]) -> None:
        self._context, self._number, self._model = context, number, model
        self._fingerprint = fingerprint_of(model)  # before its data builds what is not built yet
        self._callbacks_given, self._callbacks = training_state.listed(given.get("callbacks"))
        self._input_pipelines = InputPipelines(context, number, given)
        self._given = {**given, **self._input_pipelines.pipelines, "callbacks": self._callbacks_given}
        self._data = TrainingData(model, self._given, self._before_step, self._no_step)
        self._readings = StepReadings(context.journal, number)
        self._saved: Saved | None = None
        self._is_to_be_restored = False
        self._plan: Plan | None = None  # of an earlier attempt
        self._is_plan_noted = False
        self._protection: Protection | None = None
        self._steps = 0
        self._is_in_step = False
        self._started_with: dict[str, Any] = {}  # the random state

    # How it is run.

    def run(self, train: Train) -> Any:
        """Have it trained, from where it was; what `fit` returns."""
        over = self._context.store.end_of(self._number)
        if over is not None:
            return self._over(_read(over))
        newest = self._context.store.newest_of(self._number)
        given = dict(self._given)
        if newest is not None:
            self._saved = _read(newest)
            self._go_on_from(*self._saved)
            given["initial_epoch"] = given.get("initial_epoch", 0) + self._data.position.epochs
        self._input_pipelines.look()
        self._started_with = training_state.random_state()
        where = self._data.position
        self._note(events.TrainingStartEvent(self._number, where.epochs, where.batches, steps=self._steps))
        self._plan = self._planned_before()
        levers = {} if self._plan is None else {"plan": self._plan.stepped_down(self._rung)}
        with (
            observed_by(self),
            first_iterator_from(self._data.iterator),
            metrics_where_no_step_ran(self._model),
        ):
            history = train(given, levers)
        self._finish(history)
        return history

    def _note(self, event: events.Event) -> None:
        self._context.journal.write(event)

    @property
    def _rung(self) -> int:
        """The number of rungs down the ladder at which the training begins."""
        return self._context.rungs.get(self._number, 0)

    def _planned_before(self) -> Plan | None:
        """The plan that an earlier attempt had, whether or not it came to a checkpoint."""
        plan = None if self._saved is None else self._saved[0].plan
        if plan is None and self._rung:
            plan = next(
                (
                    event.plan
                    for event in read_events(self._context.journal.path)
                    if isinstance(event, events.PlanEvent) and event.training == self._number
                ),
                None,
            )
        return None if plan is None else Plan.from_dict(plan)

    def _ladder(self) -> Ladder | None:
        """The ladder that its micro-batches begin on; None where they begin as the plan says."""
        plan, rung = self._plan, self._rung
        if rung == 0:
            saved = None if self._saved is None else self._saved[0].ladder
            return None if saved is None else Ladder.from_dict(saved)
        if plan is None:
            below, size = rung, batches_of(self._given)[0]
        else:
            below, size = rung - len(plan.ladder), plan.stepped_down(rung).chosen.micro_batch_size
        return None if size is None or below <= 0 else Ladder(max(1, size >> below))

    # What it observes.

    def attached(self, protection: Protection) -> None:
        """A guard stands before the model."""
        self._protection = self._data.protection = protection
        ladder = self._ladder()
        if ladder is not None:
            protection.go_on_from(ladder)

    def saw(self, batch: Batch) -> None:
        """A batch is about to be trained on."""
        self._note_plan()  # which may have been made for this batch
        self._data.saw(batch, is_due=self._context.writer.pace.is_due())

    def _before_step(self, position: Position) -> None:
        """Everything is as it is between two steps: the time to restore it, or to keep it."""
        self._count()
        self._is_in_step = True
        if self._is_to_be_restored:
            self._is_to_be_restored = False
            self._restore()
            return
        if position == Position():
            self._note_plan()
            return
        where = {"epoch": position.epochs, "batch": position.batches, "step": self._steps}
        self._readings.note(self._model, self._protection, **where)
        writer = self._context.writer
        knows_batch = self._protection is None or self._data.last_batch is not None
        if knows_batch and writer.pace.is_due() and writer.is_free:
            variables = Variables(self._model)
            progress, arrays = self._progress(position, variables)
            writer.put(self._number, self._steps, vars(progress), arrays, variables)

    def _no_step(self) -> None:
        """The step that was begun has found no batch."""
        self._is_in_step = False

    def _count(self) -> None:
        """A step that was begun is over."""
        self._steps += self._is_in_step
        self._is_in_step = False

    def _plan_in_force(self) -> Plan | None:
        return None if self._protection is None else self._protection.notes.plan

    def _note_plan(self) -> None:
        plan = self._plan_in_force()
        if plan is not None and not self._is_plan_noted:
            self._is_plan_noted = True
            self._note(events.PlanEvent(self._number, plan.to_dict()))

    # What is kept.

    def _progress(self, position: Position, variables: Variables) -> Saved:
        data, arrays, protection = self._data, self._data.state(), self._protection
        plan = self._plan or self._plan_in_force()
        progress = Progress(
            fingerprint=self._fingerprint,
            position=dataclasses.astuple(position),
            steps=self._steps,
            variables=variables.shapes,
            first_batch=data.first_batch,
            last_batch=data.last_batch,
            random_at_start=encode(self._started_with, arrays, "random_at_start"),
            random=encode(training_state.random_state(), arrays, "random"),
            callbacks=training_state.remembered(self._callbacks, arrays),
            ladder=None if protection is None else protection.ladder().to_dict(),
            plan=None if plan is None else plan.to_dict(),
            stop_training=bool(self._model.stop_training),
        )
        return progress, arrays

    def _finish(self, history: Any) -> None:
        """Keep what it came to."""
        self._count()
        variables, position = Variables(self._model), self._data.end()
        epoch = max(0, position.epochs - (position.batches == 0))
        where = {"epoch": epoch, "batch": position.batches, "step": self._steps}
        self._readings.end(history, self._protection, **where)
        progress, arrays = self._progress(position, variables)
        self._context.writer.put_end(self._number, vars(progress), arrays, variables)
        self._note(events.TrainingEndEvent(self._number, self._steps))

    # How it is restored.

    def _go_on_from(self, progress: Progress, arrays: dict[str, Array]) -> None:
        self._check_model(progress)
        self._data.go_on_from(progress, arrays)
        self._steps, self._is_to_be_restored = progress.steps, True
        training_state.put_back_random_state(decode(progress.random_at_start, arrays))
        training_state.go_on_writing(self._callbacks, progress.callbacks)
        where = self._data.position
        tell(f"Training {self._number} goes on at epoch {where.epochs + 1}, batch {where.batches + 1}.")

    def _check_model(self, progress: Progress) -> None:
        if progress.fingerprint != self._fingerprint:
            raise CannotResume(
                f"training {self._number} is of another model",
                expected=f"the model {progress.fingerprint}",
                received=f"the model {self._fingerprint}",
            )

    def _restore(self) -> None:
        assert self._saved is not None
        self._data.check_same(self._saved[0], self._number)
        self._put_back(*self._saved)
        if self._protection is not None:
            self._protection.notes.steps = self._steps
        self._note_plan()

    def _put_back(self, progress: Progress, arrays: dict[str, Array]) -> None:
        untouched = training_state.unmoved_generators(self._started_with, training_state.random_state())
        model = self._model
        if not is_built(model, trains=True, evaluates=True):
            build_everything(model, self._data.sample)
        variables = Variables(model, with_seed=training_state.has_seed(progress.variables))
        variables.assign(progress.variables, arrays)
        training_state.remind(self._callbacks, progress.callbacks, arrays)
        model.stop_training = progress.stop_training
        training_state.put_back_random_state(decode(progress.random, arrays), only=untouched)

    def _over(self, saved: Saved) -> Any:
        """Take what it came to, instead of training once more."""
        progress, arrays = saved
        self._check_model(progress)
        self._data.go_on_from(progress, arrays)
        training_state.put_back_random_state(decode(progress.random_at_start, arrays))
        self._started_with = training_state.random_state()
        self._data.take_all_again()
        self._put_back(progress, arrays)
        if progress.ladder is not None:
            keep_ladder(self._model, Ladder.from_dict(progress.ladder))
        history = training_state.history_of(self._callbacks)
        history.set_model(self._model)
        self._model.history = history
        self._note(events.TrainingRestoreEvent(self._number, progress.steps))
        tell(f"Training {self._number} is over already: its {progress.steps} steps are restored.")
        return history


class TrainingByBatches:
    """A training that the script drives itself, by `train_on_batch`: it is written down, but not kept."""

    def __init__(self, context: ChildContext, number: int) -> None:
        self._context, self._number = context, number
        self._readings = StepReadings(context.journal, number)
        self._steps = 0
        context.journal.write(events.TrainingStartEvent(number))

    @contextmanager
    def step(self, model: Any, protection: Protection, x: Any) -> Iterator[None]:
        """One step is done in here; the first begins further down where an earlier attempt was killed."""
        rung, protection.notes.steps = self._context.rungs.get(self._number, 0), self._steps
        if rung and not self._steps and (size := _rows(x)) is not None:
            protection.go_on_from(Ladder(max(1, size >> rung)))
        yield
        if protection.notes.plan is not None:
            self._context.journal.write(events.PlanEvent(self._number, protection.notes.plan.to_dict()))
        self._steps = protection.notes.steps
        self._readings.note(model, protection, epoch=0, batch=self._steps, step=self._steps)

    def finish(self) -> None:
        """The script is over."""
        self._context.journal.write(events.TrainingEndEvent(self._number, self._steps))


def _rows(x: Any) -> int | None:
    """The samples of a batch."""
    shape = getattr(next(iter(keras.tree.flatten(x)), None), "shape", None)
    return int(shape[0]) if shape else None


def _read(contents: tuple[dict[str, Any], dict[str, Array]]) -> Saved:
    """A checkpoint as the store has it."""
    says, arrays = contents
    return Progress(**says), arrays
