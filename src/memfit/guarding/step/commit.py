"""Phase two: weights, optimizer state and stage change together, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from memfit.core.errors import TornUpdate
from memfit.guarding.step.accumulators import Accumulators, ShadowState, Slices, distinct
from memfit.guarding.step.rollback import (
    NOT_WORTH_RELEASING_BYTES,
    Reversible,
    interrupts_held_back,
    reserve_bytes,
    size_of,
)
from memfit.machine import is_oom
from memfit.machine.limits import free_bytes
from memfit.model.traced_functions import Graph
from memfit.model.training_data import open_batch
from memfit.private.patching import overridden
from memfit.private.tensorflow.variables import backing_variable

# Keras' optimizers that update each variable on its own, so that groups of them can follow one another.
_ONE_BY_ONE = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Ftrl", "Lion", "Lamb",
)  # fmt: skip


class Commit:
    """Applies the gathered gradients and the stage to the model, group by group, step counter last.

    Within a group every variable has a way back. Between groups the way leads forward: a group that runs
    out is tried again after gradients have moved to the host and with its way back there.
    """

    def __init__(
        self, optimizer: Any, accumulators: Accumulators, stage: ShadowState, *, eager: bool
    ) -> None:
        self.optimizer = optimizer
        self._accumulators = accumulators
        self._stage = stage
        self._eager = eager
        self._groups: list[Reversible] = []
        self._finish: Any = None
        self._releases: list[Any] = []  # of the old values of each group but the last
        self._key: Any = None
        self._needed_bytes = 0
        self._reserve_bytes = 0
        self._held_bytes = 0

    def run(self) -> Exception | None:
        """Change the model; on any failure leave it as it was and raise.

        Returns the out-of-memory error that the commit survived, if there was one.
        """
        slices = self._accumulators.joined_slices()
        self._prepare(slices)
        with interrupts_held_back():
            try:
                survived = self._change(slices)
            except BaseException:
                self._finish()
                raise
            finally:
                self._accumulators.forget_slices()
            if self._releases_old_values:
                self._finish()
        return survived

    def graphs(self, slices: Slices) -> list[Any]:
        """The graphs of a commit on the device, one after the other; not for what runs eagerly."""
        self._prepare(slices)
        found: list[Any] = []
        for group, release in itertools.zip_longest(self._groups, self._releases):
            found.extend([group.graph] if release is None else [group.graph, release.concrete])
        return [*found, self._finish.concrete] if self._releases_old_values else found

    @property
    def _releases_old_values(self) -> bool:
        return self._held_bytes > NOT_WORTH_RELEASING_BYTES

    def _prepare(self, slices: Slices) -> None:
        """Trace the groups, before anything changes; again when other gradients come."""
        key = (self._accumulators.key, frozenset(self._stage.written))
        if key != self._key:
            self._groups = self._make_groups(slices)
            self._reserve_bytes = max(group.way_back.bytes for group in self._groups)
            weights = sum(size_of(backing_variable(v)) for v in self._accumulators.variables)
            self._held_bytes = weights + self._groups[-1].way_back.bytes
            self._finish = self._release_all
            self._releases = [group.way_back.release for group in self._groups[:-1]]
            if not self._eager:
                self._finish, *self._releases = (
                    Graph(release, []) for release in (self._finish, *self._releases)
                )
            self._key = key

    def _release_all(self) -> None:
        self._groups[-1].way_back.release()
        self._accumulators.release()

    def _make_groups(self, slices: Slices) -> list[Reversible]:
        places = self._accumulators.places()
        if self._eager:
            everything = [*self._accumulators.variables, *self._optimizer_variables(), *self._stage.variables]
            backing = [backing_variable(variable) for variable in distinct(everything)]
            return [Reversible(self._writer(places, last=True), [], changing=backing)]
        batches = [places]
        if updates_one_by_one(self.optimizer):
            batches = _cut(places, self._sizes(), reserve_bytes())
        batches = self._with_gradients_last(batches)
        specs = _open_specs(slices)
        return [Reversible(self._writer(batch, last=batch is batches[-1]), [specs]) for batch in batches]

    def _writer(self, places: list[int], *, last: bool) -> Callable[[Slices], None]:
        return lambda slices: self._write(slices, places, last=last)

    def _with_gradients_last(self, batches: list[list[int]]) -> list[list[int]]:
        """Join what got no gradient to the last group that did: an optimizer wants one at least."""
        with_gradients = [batch for batch in batches if self._accumulators.reaches(batch)]
        if not with_gradients:
            return [[place for batch in batches for place in batch]]
        rest = [place for batch in batches if batch not in with_gradients for place in batch]
        return [*with_gradients[:-1], [*with_gradients[-1], *rest]]

    def _optimizer_variables(self) -> list[Any]:
        return [] if self.optimizer is None else list(self.optimizer.variables)

    def _sizes(self) -> list[int]:
        """About what each variable and its slots take."""
        own = [size_of(backing_variable(variable)) for variable in self._accumulators.variables]
        slots = sum(size_of(backing_variable(variable)) for variable in self._optimizer_variables())
        factor = 1 + slots / max(1, sum(own))
        return [int(size * factor) for size in own]

    def _write(self, slices: Slices, places: list[int], *, last: bool) -> None:
        variables = [self._accumulators.variables[place] for place in places]
        gradients = [self._accumulators.gradient(place, slices) for place in places]
        with ExitStack() as overrides:
            if not last:
                counter = self.optimizer.iterations
                overrides.enter_context(overridden(counter, "assign_add", lambda value: None))
            if self.optimizer is not None:
                self.optimizer.apply(gradients, variables)
        if last:
            self._stage.publish()

    def _change(self, slices: Slices) -> Exception | None:
        survived: Exception | None = None
        on_host = not self._has_room()
        for done, group in enumerate(self._groups):
            failed = False
            try:
                group.run(slices, on_host=on_host)
            except Exception as error:
                if not is_oom(error) or (on_host and done == 0):
                    raise
                survived = error.with_traceback(None)  # whose frames would keep values alive
                failed = True
            if failed:
                self._needed_bytes = max(self._needed_bytes, (free_bytes() or 0) + 1)
                on_host = True
                self._accumulators.move_to_host()
                self._go_forward(group, slices, done)
            if done < len(self._releases):
                self._releases[done]()
        return survived

    def _has_room(self) -> bool:
        """Whether the way back fits beside what is in use, as far as anybody knows."""
        free = free_bytes()
        return free is None or free > max(self._needed_bytes, 2 * self._reserve_bytes)

    def _go_forward(self, group: Reversible, slices: Slices, done: int) -> None:
        try:
            group.run(slices, on_host=True)
        except Exception as error:
            if not is_oom(error) or done == 0:
                raise
            raise TornUpdate(done, len(self._groups)) from error


def updates_one_by_one(optimizer: Any) -> bool:
    """Whether an optimizer updates each variable by itself, from its own gradient and slots alone."""
    return (
        type(optimizer) in {getattr(keras.optimizers, name) for name in _ONE_BY_ONE}
        and not optimizer.global_clipnorm
        and not optimizer.use_ema
        and not optimizer.gradient_accumulation_steps
    )


def _cut(places: list[int], sizes: list[int], most_bytes: int) -> list[list[int]]:
    """Places in groups of at most so many bytes, or of one."""
    groups: list[list[int]] = [[]]
    filled = 0
    for place in places:
        if groups[-1] and filled + sizes[place] > most_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += sizes[place]
    return groups


def _open_specs(slices: Slices) -> Any:
    """Specs of slices with an open number of rows, so that one trace serves every step."""
    return {
        place: tuple(tf.TensorSpec(open_batch(part.shape), part.dtype) for part in pair)
        for place, pair in slices.items()
    }
