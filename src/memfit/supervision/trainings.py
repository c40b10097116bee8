"""One `fit` of a supervised script: begun, gone on with where it was, or known to be over."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import CannotResume
from memfit.models.internals import build_everything
from memfit.planning.batches import batches_of, samples_of
from memfit.planning.fingerprints import fingerprint_of
from memfit.records import Plan
from memfit.runs import keras_internals
from memfit.runs.batches import Batch
from memfit.runs.ladders import Ladder
from memfit.runs.protections import keep_ladder
from memfit.runs.watchers import watched_by
from memfit.supervision import callbacks, internals, randomness
from memfit.supervision.desks import Desk, tell
from memfit.supervision.feeds import Feeds
from memfit.supervision.files import Array
from memfit.supervision.journals import read_lines
from memfit.supervision.pipelines import has_state
from memfit.supervision.plain import decode, encode
from memfit.supervision.readings import Steps
from memfit.supervision.replays import Position, digest, replaying
from memfit.supervision.shelves import Contents
from memfit.supervision.variables import Variables, has_seed

Train = Callable[[dict[str, Any], dict[str, Any]], Any]

_OF_ITERATOR = ("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight")


class Training:
    """A training by its number in the script; it looks on while it runs, and at each batch it takes again."""

    def __init__(self, desk: Desk, number: int, model: Any, given: dict[str, Any]) -> None:
        self.position = Position()
        self.pipeline: dict[str, Array] | None = None
        self._desk, self._number, self._model = desk, number, model
        self._fingerprint = fingerprint_of(model)  # before its data builds what is not built yet
        self._callbacks_given, self._callbacks = callbacks.listed(given.get("callbacks"))
        self._feeds = Feeds(desk, number, given)
        self._given = {**given, **self._feeds.pipelines, "callbacks": self._callbacks_given}
        self._saved: Contents | None = None
        self._plan: Plan | None = None  # of an earlier attempt
        self._is_to_be_restored = False
        self._protection: Any = None
        self._sample: Any = None  # of the first batch
        self._first_batch: int | None = None
        self._last_batch: int | None = None
        self._now = Position()
        self._steps = 0
        self._is_in_step = False
        self._iterator: Any = None
        self._started_with: dict[str, Any] = {}

    # How it is run.

    def run(self, train: Train) -> Any:
        """Have it trained, from where it was; what `fit` returns."""
        over = self._desk.shelf.end_of(self._number)
        if over is not None:
            return self._over(over)
        self._saved = self._desk.shelf.newest_of(self._number)
        given = dict(self._given)
        if self._saved is not None:
            self._go_on_from(self._saved)
            given["initial_epoch"] = given.get("initial_epoch", 0) + self.position.epochs
        self._feeds.look()
        self._started_with = randomness.random_state()
        says = {"training": self._number, "epochs": self.position.epochs, "batches": self.position.batches}
        self._desk.journal.write("training", **says, steps=self._steps)
        self._plan = self._planned_before()
        levers = {} if self._plan is None else {"plan": self._plan.stepped_down(self._rung)}
        with (
            watched_by(self),
            internals.first_iterator_from(self._make_iterator),
            internals.metrics_where_no_step_ran(self._model),
        ):
            history = train(given, levers)
        self._finish()
        return history

    def _make_iterator(self, kind: Any, **options: Any) -> Any:
        self._iterator = replaying(self, kind, **options)
        return self._iterator

    @property
    def _rung(self) -> int:
        """How far down the ladder it begins."""
        return self._desk.rungs.get(self._number, 0)

    def _planned_before(self) -> Plan | None:
        """The plan that an earlier attempt had, whether or not it came to a checkpoint."""
        says = {} if self._saved is None else self._saved[0]
        plan = says.get("plan")
        if plan is None and self._rung:
            lines = read_lines(self._desk.journal.path)
            plans = [line for line in lines if line["event"] == "plan" and line["training"] == self._number]
            plan = plans[0]["plan"] if plans else None
        return None if plan is None else Plan.from_dict(plan)

    def _ladder(self) -> Ladder | None:
        """Where its micro-batches begin, if not where the plan says."""
        plan, rung = self._plan, self._rung
        if rung == 0:
            saved = None if self._saved is None else self._saved[0]["ladder"]
            return None if saved is None else Ladder.from_dict(saved)
        if plan is None:
            below, size = rung, batches_of(self._given)[0]
        else:
            below, size = rung - len(plan.ladder), plan.stepped_down(rung).chosen.micro_batch_size
        return None if size is None or below <= 0 else Ladder(max(1, size >> below))

    # What it looks on at.

    def attached(self, protection: Any) -> None:
        """A guard stands before the model."""
        self._protection = protection
        ladder = self._ladder()
        if ladder is not None:
            protection.go_on_from(ladder)

    def saw(self, batch: Batch) -> None:
        """A batch is about to be trained on; it is looked at if a checkpoint may follow."""
        if self._first_batch is None or self._desk.writer.pace.is_due():
            self._look_at(batch)
        else:
            self._last_batch = None

    def _look_at(self, batch: Batch) -> None:
        self._last_batch = digest(batch)
        if self._first_batch is None:
            self._first_batch = self._last_batch

    def took(self, element: Any) -> None:
        """A batch was taken that was trained on before."""
        if self._protection is None:
            batch = None
        else:
            batch = self._protection.batch_of(element)
            self._look_at(batch)
        if self._sample is None:
            self._sample = element if batch is None else batch.part(0, 1)

    def before_step(self, position: Position) -> None:
        """Everything is as it is between two steps: the time to restore it, or to keep it."""
        self._now = position
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
        self._lines.note(self._model, self._protection, **where)
        writer = self._desk.writer
        knows_batch = self._protection is None or self._last_batch is not None
        if knows_batch and writer.pace.is_due() and writer.is_free:
            variables = Variables(self._model)
            says, arrays = self._contents(position, variables)
            writer.put(self._number, self._steps, says, arrays, variables)

    def _count(self) -> None:
        """A step that was begun is over."""
        self._steps += self._is_in_step
        self._is_in_step = False

    @functools.cached_property
    def _lines(self) -> Steps:
        return Steps(self._desk.journal, self._number)

    def _note_plan(self) -> None:
        plan = None if self._protection is None else self._protection.journal.plan
        if plan is not None:
            self._desk.journal.write("plan", training=self._number, plan=plan.to_dict())

    # What is kept.

    def _contents(self, position: Position, variables: Variables) -> tuple[dict[str, Any], dict[str, Array]]:
        arrays: dict[str, Array] = {} if self._iterator is None else self._iterator.state()
        protection = self._protection
        plan = protection.journal.plan if self._plan is None and protection is not None else self._plan
        return {
            "fingerprint": self._fingerprint,
            "position": dataclasses.astuple(position),
            "steps": self._steps,
            "variables": variables.shapes,
            "first_batch": self._first_batch,
            "last_batch": self._last_batch,
            "random_at_start": encode(self._started_with, arrays, "random_at_start"),
            "random": encode(randomness.random_state(), arrays, "random"),
            "callbacks": callbacks.remembered(self._callbacks, arrays),
            "ladder": None if protection is None else protection.ladder().to_dict(),
            "plan": None if plan is None else plan.to_dict(),
            "stop_training": bool(self._model.stop_training),
        }, arrays

    def _finish(self) -> None:
        """Keep what it came to."""
        self._count()
        variables = Variables(self._model)
        says, arrays = self._contents(self._end(), variables)
        self._desk.writer.put_end(self._number, says, arrays, variables)
        self._desk.journal.write("trained", training=self._number, steps=self._steps)

    def _end(self) -> Position:
        """How much of its data it has taken."""
        if self._iterator is None:
            return self._now
        taken = self._now.batches + self._iterator.steps_per_execution
        length = self._iterator.num_batches
        if self._model.stop_training and (length is None or taken < length):
            return Position(self._now.epochs, taken)
        return Position(self._now.epochs + 1, 0)

    # How it is restored.

    def _go_on_from(self, saved: Contents) -> None:
        says, arrays = saved
        self._check_model(says)
        self.position, self._steps = Position(*says["position"]), says["steps"]
        self.pipeline = arrays if has_state(arrays) else None
        self._is_to_be_restored = True
        self._first_batch = self._last_batch = self._sample = None
        randomness.put_back(decode(says["random_at_start"], arrays))
        callbacks.go_on_writing(self._callbacks, says["callbacks"])
        at = f"epoch {self.position.epochs + 1}, batch {self.position.batches + 1}"
        tell(f"Training {self._number} goes on at {at}.")

    def _check_model(self, says: dict[str, Any]) -> None:
        if says["fingerprint"] != self._fingerprint:
            raise CannotResume(
                f"training {self._number} is of another model",
                expected=f"the model {says['fingerprint']}",
                received=f"the model {self._fingerprint}",
            )

    def _restore(self) -> None:
        assert self._saved is not None
        says, _ = self._saved
        last = self._last_batch if self.pipeline is None else None
        for which, seen in (("first_batch", self._first_batch), ("last_batch", last)):
            if says[which] is not None and seen is not None and says[which] != seen:
                raise CannotResume(
                    f"the {which.replace('_', ' ')} of training {self._number} is not the one of before",
                    expected="the same data in the same order; generators of random numbers other than "
                    "Python's, NumPy's and TensorFlow's global ones need a seed",
                    received=f"other samples (checksum {seen:08x}, was {says[which]:08x})",
                )
        self._put_back(self._saved)
        if self._protection is not None:
            self._protection.journal.steps = self._steps
        self._note_plan()

    def _put_back(self, saved: Contents) -> None:
        says, arrays = saved
        untouched = randomness.unmoved(self._started_with, randomness.random_state())
        model = self._model
        if not keras_internals.is_built(model, trains=True, evaluates=True):
            build_everything(model, self._sample)
        variables = Variables(model, with_seed=has_seed(says["variables"]))
        variables.assign(says["variables"], arrays)
        callbacks.remind(self._callbacks, says["callbacks"], arrays)
        model.stop_training = says["stop_training"]
        randomness.put_back(decode(says["random"], arrays), only=untouched)

    def _over(self, saved: Contents) -> Any:
        """Take what it came to, instead of training once more."""
        says, arrays = saved
        self._check_model(says)
        self.position = Position(*says["position"])
        self.pipeline = arrays if has_state(arrays) else None
        randomness.put_back(decode(says["random_at_start"], arrays))
        self._started_with = randomness.random_state()
        samples = samples_of(self._given, 1)
        if samples is None:
            self._take_all_again()
        else:  # arrays do not remember where they are
            self.took(keras.tree.map_structure(tf.convert_to_tensor, _as_batch(samples)))
        self._put_back(saved)
        if says["ladder"] is not None:
            keep_ladder(self._model, Ladder.from_dict(says["ladder"]))
        history = callbacks.history_of(self._callbacks)
        history.set_model(self._model)
        self._model.history = history
        self._desk.journal.write("restored", training=self._number, steps=says["steps"])
        tell(f"Training {self._number} is over already: its {says['steps']} steps are restored.")
        return history

    def _take_all_again(self) -> None:
        """Have data that remembers where it is, such as a generator, where it would be."""
        options = {name: self._given.get(name) for name in _OF_ITERATOR}
        iterator = replaying(
            self,
            internals.epoch_iterators(),
            **options,
            shuffle=self._given.get("shuffle", True),
            distribute_strategy=self._model.distribute_strategy,
            steps_per_execution=self._model.steps_per_execution,
        )
        iterator.reset()
        iterator.take_the_rest()


def _as_batch(parts: Any) -> Any:
    """Samples as a step takes them."""
    return keras.utils.pack_x_y_sample_weight(*parts) if isinstance(parts, tuple) else parts
