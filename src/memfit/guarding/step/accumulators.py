"""All that a step gathers before its commit: gradients in accumulators, everything else in shadow state.

Dense gradients go into one private variable each, which takes memory only from the first micro-batch to
the commit. Sparse ones (of embeddings) are kept as the slices that they are, large ones on the host: a dense
copy could be as large as the table, and optimizers treat slices differently. Shadow state is private copies
of all that a step moves besides the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from memfit.guarding.step.batches import aligned_copy, as_tensor
from memfit.guarding.step.loss_weights import Kind, LossWeights
from memfit.private.keras.global_state import StagedScope
from memfit.private.tensorflow.variables import backing_variable

Gradients = dict[str, Any]  # place of the variable -> its dense gradient
Slices = dict[str, tuple[Any, Any]]  # place of the variable -> (indices, values)

_LARGE_BYTES = 1 << 20  # of slices


class Accumulators:
    """One place for each variable that is updated; what never gets a gradient takes no memory."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self._places: dict[int, int] = {}
        self._dense: dict[int, Any] = {}
        self._slices: dict[str, list[tuple[Any, Any]]] = {}
        self._adds_up_rows = False
        self.has_slices = False  # whether any gradient has been sparse
        self._reached: set[int] = set()

    def separate(
        self, gradients: list[Any], variables: list[Any], *, shares: LossWeights, kind: Kind
    ) -> tuple[Gradients, Slices]:
        """Dense and sparse gradients by place, weighed if that is not done yet; eagerly or while tracing."""
        dense: Gradients = {}
        slices: Slices = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            place = str(self._place_of(variable))
            if isinstance(gradient, tf.IndexedSlices):
                values = shares.by_samples(gradient.values) if kind == "mean" else gradient.values
                slices[place] = (gradient.indices, values)
            elif gradient is not None:
                dense[place] = shares.by_samples(gradient) if kind == "mean" else gradient
        return dense, slices

    def _place_of(self, variable: Any) -> int:
        if id(variable) not in self._places:
            self._places[id(variable)] = len(self.variables)
            self.variables.append(variable)
        return self._places[id(variable)]

    def places(self) -> list[int]:
        """All places, those that got no gradient last."""
        return sorted(range(len(self.variables)), key=lambda place: not self.reaches([place]))

    def reaches(self, places: list[int]) -> bool:
        """Whether any of these got a gradient."""
        return any(place in self._reached or str(place) in self._slices for place in places)

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of a traced update: which variables got a dense or a sparse gradient."""
        return (len(self.variables), *sorted(self._reached), *sorted(self._slices))

    def begin(self) -> None:
        """Forget what was gathered."""
        self._slices.clear()
        self._reached.clear()

    def forget_slices(self) -> None:
        """Let the sparse gradients go."""
        self._slices.clear()

    def take(self, gradients: Gradients, *, first: bool) -> None:
        """Add dense gradients, or begin with them; eagerly or while tracing."""
        for name, gradient in gradients.items():
            accumulator = self._accumulator(int(name), gradient.dtype)
            if first or (tf.executing_eagerly() and int(name) not in self._reached):
                accumulator.assign(gradient)
            else:
                accumulator.assign_add(gradient)

    def _accumulator(self, place: int, dtype: Any) -> Any:
        """The variable for a dense gradient; its shape is open, so that it can be emptied."""
        if place not in self._dense:
            with tf.init_scope():
                self._dense[place] = tf.Variable(
                    tf.zeros((0,), dtype), shape=tf.TensorShape(None), trainable=False
                )
        return self._dense[place]

    def keep(self, reached: list[str], slices: Slices, *, are_all: bool = True) -> None:
        """Take note of what one micro-batch reached, and its sparse gradients; on the host if more come."""
        self._reached.update(map(int, reached))
        for place, pair in slices.items():
            self._slices.setdefault(place, []).append(pair if are_all else _out_of_the_pool(*pair))
            self.has_slices = True

    def joined_slices(self) -> Slices:
        """The sparse gradients of all micro-batches, as one set of slices for each variable."""
        join = _added_up if self._adds_up_rows else _joined
        return {place: join(pairs) for place, pairs in self._slices.items()}

    def add_up_rows(self) -> bool:
        """From now on, have one slice for each row of a table; False if nothing would become less."""
        if not self.has_slices or self._adds_up_rows:
            return False
        self._adds_up_rows = True
        return True

    def gradient(self, place: int, slices: Slices) -> Any:
        """The gradient of one variable, as the optimizer takes it; None where there is none."""
        variable = backing_variable(self.variables[place])
        if (pair := slices.get(str(place))) is not None:
            return tf.IndexedSlices(pair[1], pair[0], tf.constant(variable.shape.as_list()))
        if place not in self._reached:
            return None
        return tf.ensure_shape(self._dense[place].read_value(), variable.shape)

    def release(self) -> None:
        """Give the memory of dense gradients back; eagerly or while tracing."""
        for accumulator in self._dense.values():
            accumulator.assign(tf.zeros((0,), accumulator.dtype))

    def move_to_host(self) -> None:
        """Put the dense gradients where they take no memory of the device's pool."""
        for accumulator in self._dense.values():
            accumulator.assign(as_tensor(aligned_copy(accumulator.numpy())))


def _out_of_the_pool(indices: Any, values: Any) -> tuple[Any, Any]:
    """Slices on the host, if they are large."""
    if int(tf.size(values)) * values.dtype.size < _LARGE_BYTES:
        return indices, values
    return aligned_copy(indices.numpy()), aligned_copy(values.numpy())


def _joined(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    if len(pairs) == 1:
        return as_tensor(pairs[0][0]), as_tensor(pairs[0][1])
    if any(isinstance(values, np.ndarray) for _, values in pairs):
        return as_tensor(_on_host(pairs, 0)), as_tensor(_on_host(pairs, 1))
    return _concatenated(pairs, 0), _concatenated(pairs, 1)


def _concatenated(pairs: list[tuple[Any, Any]], part: int) -> Any:
    return tf.concat([pair[part] for pair in pairs], axis=0)


def _on_host(pairs: list[tuple[Any, Any]], part: int) -> Any:
    return np.concatenate([np.asarray(pair[part]) for pair in pairs])


def _added_up(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """One slice for each row, the sum of its slices."""
    indices, values = _on_host(pairs, 0), _on_host(pairs, 1)
    order = np.argsort(indices, kind="stable")
    rows, starts = np.unique(indices[order], return_index=True)
    if not len(rows):
        return as_tensor(indices), as_tensor(values)
    sums = np.add.reduceat(values.astype(np.promote_types(values.dtype, np.float32))[order], starts)
    return as_tensor(rows), as_tensor(sums.astype(values.dtype))


Moved = dict[str, Any]  # place of the variable -> its value


def distinct(variables: list[Any], *, but: list[Any] | None = None) -> list[Any]:
    """Variables without repetition and without `but`, in order."""
    left_out = {id(variable) for variable in but or ()}
    return list({id(variable): variable for variable in variables if id(variable) not in left_out}.values())


class ShadowState:
    """Staged values of BatchNorm statistics, seeds and metrics; its methods run eagerly or while tracing.

    A copy is made only of what a step really writes.
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        self.written: set[int] = set()  # places of what the parts of this step have written so far
        self._copies: dict[int, Any] = {}

    def extend(self, strangers: list[Any]) -> None:
        """Take more variables onto the stage: what a step assigns to although it is not tracked."""
        self.variables = distinct([*self.variables, *strangers])

    def real_values(self) -> list[Any]:
        """The values that the model holds."""
        return [backing_variable(variable).read_value() for variable in self.variables]

    def staged_values(self, written: set[int]) -> list[Any]:
        """The values that the parts so far have left at these places; elsewhere, those of the model."""
        return [
            (self._copies[place] if place in written else backing_variable(variable)).read_value()
            for place, variable in enumerate(self.variables)
        ]

    def scope(self, values: list[Any]) -> StagedScope:
        """A scope in which the variables have these values, and assignments stay inside.

        There are fewer values than variables where TensorFlow traces a function twice and the first time has
        brought more onto the stage.
        """
        return StagedScope(list(zip(self.variables, values, strict=False)))

    def moved(self, scope: StagedScope) -> Moved:
        """The values that were assigned inside a scope, by place."""
        return {
            str(place): scope.get_current_value(variable)
            for place, variable in enumerate(self.variables)
            if id(variable) in scope.written
        }

    def keep(self, moved: Moved) -> None:
        """Take what a part has moved; while tracing, copies are made where there are none."""
        for name, value in moved.items():
            place = int(name)
            if place not in self._copies:
                with tf.init_scope():
                    self._copies[place] = tf.Variable(
                        backing_variable(self.variables[place]).read_value(), trainable=False
                    )
            self._copies[place].assign(value)

    def moves(self, name: str) -> bool:
        """Whether a step moves a variable of this name."""
        return any(self.variables[place].path.rpartition("/")[2] == name for place in self.written)

    def publish(self) -> None:
        """Give the model what the parts of this step have written."""
        for place in sorted(self.written):
            backing_variable(self.variables[place]).assign(self._copies[place].read_value())
