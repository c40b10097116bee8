"""Phase two: weights, optimizer state and stage change together, or not at all."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from memfit.devices import is_oom
from memfit.errors import TornUpdate
from memfit.runs.accumulators import Accumulators, Slices
from memfit.runs.graphs import graph, written_variables
from memfit.runs.keras_internals import backing_variable, overridden
from memfit.runs.stages import Stage, distinct
from memfit.runs.waybacks import WayBack, free_bytes, interrupts_held_back

# The way back of one group of variables may take this much, or what its largest variable takes.
RESERVE_BYTES = 32 << 20

# Keras' optimizers that update each variable on its own, so that groups of them can follow one another.
_ONE_BY_ONE = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Ftrl", "Lion", "Lamb",
)  # fmt: skip


class Group:
    """Some variables that are updated in one go, with a way back for all that this changes."""

    def __init__(self, write: Any, slices: Slices, *, everything: list[Any] | None) -> None:
        self.write = write
        if everything is None:
            self.write = graph(write, input_signature=[_open_specs(slices)])
            everything = written_variables(self.write.get_concrete_function())
        self.way_back = WayBack(everything)

    def change(self, slices: Slices, *, on_host: bool) -> None:
        """Change the variables; on any failure they are as before."""
        self.way_back.remember(on_host=on_host)
        try:
            self.write(slices)
        except BaseException:
            self.way_back.go_back()
            raise
        finally:
            self.way_back.forget()


class Commit:
    """Applies the gathered gradients and the stage to the model, group by group, step counter last.

    Within a group every variable has a way back. Between groups the way leads forward: a group that runs
    out is tried again after gradients have moved to the host and with its way back there.
    """

    def __init__(self, optimizer: Any, accumulators: Accumulators, stage: Stage, *, eager: bool) -> None:
        self.optimizer = optimizer
        self._accumulators = accumulators
        self._stage = stage
        self._eager = eager
        self._groups: list[Group] = []
        self._key: Any = None
        self._needed_bytes = 0
        self._release = accumulators.release if eager else None

    def run(self) -> Exception | None:
        """Change the model; on any failure leave it as it was and raise.

        Returns the out-of-memory error that the commit survived, if there was one.
        """
        slices = self._accumulators.joined_slices()
        self._prepare(slices)
        with interrupts_held_back():
            survived = self._change(slices)
            self._release = self._release or graph(self._accumulators.release, input_signature=[])
            self._release()
        return survived

    @property
    def reserve_bytes(self) -> int:
        """What the largest group needs for its way back."""
        return max((group.way_back.bytes for group in self._groups), default=0)

    def _prepare(self, slices: Slices) -> None:
        """Trace the groups, before anything changes; again when other gradients come."""
        if self._accumulators.key != self._key:
            self._groups = self._make_groups(slices)
            self._key = self._accumulators.key

    def _make_groups(self, slices: Slices) -> list[Group]:
        places = self._accumulators.places()
        if self._eager:
            everything = [*self._accumulators.variables, *self._optimizer_variables(), *self._stage.variables]
            backing = [backing_variable(variable) for variable in distinct(everything)]
            return [Group(self._writer(places, last=True), slices, everything=backing)]
        batches = _cut(places, self._sizes()) if updates_one_by_one(self.optimizer) else [places]
        batches = self._with_gradients_last(batches)
        return [
            Group(self._writer(batch, last=batch is batches[-1]), slices, everything=None)
            for batch in batches
        ]

    def _writer(self, places: list[int], *, last: bool) -> Any:
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
        weights = [backing_variable(variable) for variable in self._accumulators.variables]
        own = [int(v.shape.num_elements() or 0) * v.dtype.size for v in weights]
        slots = sum(
            int(backing_variable(v).shape.num_elements() or 0) * backing_variable(v).dtype.size
            for v in self._optimizer_variables()
        )
        factor = 1 + slots / max(1, sum(own))
        return [int(size * factor) for size in own]

    def _write(self, slices: Slices, places: list[int], *, last: bool) -> None:
        variables = [self._accumulators.variables[place] for place in places]
        gradients = [self._accumulators.gradient(place, slices) for place in places]
        if last:
            if self.optimizer is not None:
                self.optimizer.apply(gradients, variables)
            self._stage.publish()
        else:
            with overridden(self.optimizer.iterations, "assign_add", lambda value: None):
                self.optimizer.apply(gradients, variables)

    def _change(self, slices: Slices) -> Exception | None:
        survived: Exception | None = None
        on_host = not self._has_room()
        for done, group in enumerate(self._groups):
            try:
                group.change(slices, on_host=on_host)
                continue
            except Exception as error:
                if not is_oom(error) or (on_host and done == 0):
                    raise
                survived = error.with_traceback(None)  # whose frames would keep values alive
            self._needed_bytes = max(self._needed_bytes, (free_bytes() or 0) + 1)
            on_host = True
            self._accumulators.move_to_host()
            self._go_forward(group, slices, done)
        return survived

    def _has_room(self) -> bool:
        """Whether the way back fits beside what is in use, as far as anybody knows."""
        free = free_bytes()
        return free is None or free > max(self._needed_bytes, 2 * self.reserve_bytes)

    def _go_forward(self, group: Group, slices: Slices, done: int) -> None:
        try:
            group.change(slices, on_host=True)
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


def _cut(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Places in groups of at most `RESERVE_BYTES`, or of one."""
    groups: list[list[int]] = [[]]
    filled = 0
    for place in places:
        if groups[-1] and filled + sizes[place] > RESERVE_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += sizes[place]
    return groups


def _open_specs(slices: Slices) -> Any:
    """Specs of slices with an open number of rows, so that one trace serves every step."""
    return {
        place: tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in pair)
        for place, pair in slices.items()
    }
