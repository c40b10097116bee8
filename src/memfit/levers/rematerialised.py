"""A part of a model that is computed again in the backward pass, with the very same values.

The forward pass keeps a segment's inputs and nothing of what it computes on the way. The backward pass
computes it once more: every variable that the first pass has read (seeds, BatchNorm statistics) has its value
of then, and what it assigns is dropped, so that masks are the same and statistics move once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import keras
import tensorflow as tf

from memfit.core.records.programs import Span, outermost
from memfit.levers.undo import Undoable, forget_traces
from memfit.model.calls import Call, Tensors, Wrap, calls_of, in_backward_order, input_keys, output_keys
from memfit.model.snapshots import Recording
from memfit.private.keras.global_state import global_seed_outside_scopes, scope_in_force
from memfit.private.keras.layers import (
    CallState,
    instead_of_running_through,
    layers_and_self,
    mask_of,
    owners_of_losses,
    with_mask,
)
from memfit.private.patching import overridden
from memfit.private.tensorflow.variables import is_compiled_by_xla, is_recorded, unrecorded

Piece = Any  # Call | Segment
Compute = Callable[[list[Any]], list[Any]]  # values -> outputs


class Segment:
    """Calls of a model that are computed again together; some of its pieces may be segments themselves.

    Each call has inputs of its own, in the order of the way back, although several may be the same tensor: so
    their gradients are added up all at once and in the same order as in the plain model, which rounds alike.
    With segments inside, calls share them.
    """

    def __init__(self, pieces: Sequence[Piece], *, outputs: Sequence[int], way_back: Sequence[Call]) -> None:
        self._pieces = list(pieces)
        self.calls: list[Call] = [call for piece in pieces for call in calls_in(piece)]
        made = {key for call in self.calls for key in call.outputs}
        mine = set(map(id, self.calls))
        backwards = [call for call in way_back if id(call) in mine]
        used = [(key, call) for call in backwards for key in call.inputs if key not in made]
        if self._pieces != self.calls:
            used = list({key: (key, call) for key, call in used}.values())
        self._inputs = used
        self._outputs = [key for key in outputs if key in made]
        self._layers = [layer for call in self.calls for layer in layers_and_self(call.operation)]

    def run(self, tensors: Tensors, wrap: Wrap) -> None:
        """Run it on these tensors, and add what it returns."""

        def run(pieces: Sequence[Piece], values: list[Any]) -> list[Any]:
            pairs = list(zip(self._inputs, values, strict=True))
            local = {key: value for (key, _), value in pairs}
            for piece in pieces:
                seen = local | {key: value for (key, call), value in pairs if call is piece}
                piece.run(seen, wrap)
                made = [key for call in calls_in(piece) for key in call.outputs]
                local.update((key, seen[key]) for key in made if key in seen)
            return [local[key] for key in self._outputs]

        returned = compute_twice(
            lambda values: run(self.calls, values),
            lambda values: run(self._pieces, values),
            [tensors[key] for key, _ in self._inputs],
            layers=self._layers,
        )
        tensors.update(zip(self._outputs, returned, strict=True))


def calls_in(piece: Piece) -> list[Call]:
    """All calls of a piece, in order."""
    return piece.calls if isinstance(piece, Segment) else [piece]


def run_pieces(pieces: Sequence[Piece], tensors: Tensors, wrap: Wrap) -> None:
    """Run calls and segments, one after the other."""
    for piece in pieces:
        piece.run(tensors, wrap)


def compute_twice(first: Compute, again: Compute, given: list[Any], *, layers: list[Any]) -> list[Any]:
    """The outputs of `first` for these values; for the gradient, `again` computes the same once more.

    Both run only these Keras layers.
    """
    if not is_recorded() or not all(isinstance(value, tf.Tensor) for value in given):
        return first(given)
    return _Passage(first, again, given, layers).run()


class _Passage:
    """One pass through a segment: forward now, and once more when its gradient is asked for."""

    def __init__(self, first: Compute, again: Compute, given: list[Any], layers: list[Any]) -> None:
        self._first, self._again = first, again
        self._given = given
        self._layers = layers
        # XLA does not heed control dependencies: there, computing again waits for the gradients from above
        # by way of a number.
        self._through_data = is_compiled_by_xla()
        self._masks = [mask_of(value) for value in given]
        self._places = [place for place, value in enumerate(given) if _is_differentiable(value)]
        self._call_state = CallState()
        self._mapped = self._mapped_weights()
        self._outputs: list[Any] = []
        self._losses: list[Any] = []
        self._scope = Recording()

    def _mapped_weights(self) -> list[tuple[Any, Any]]:
        """Weights for which a scope around us has tensors instead: their gradients go to those."""
        outer = scope_in_force()
        if outer is None:
            return []
        weights = {id(w): w for layer in self._layers for w in layer.trainable_variables}.values()
        pairs = [(weight, outer.get_current_value(weight)) for weight in weights]
        return [(weight, value) for weight, value in pairs if isinstance(value, tf.Tensor)]

    def run(self) -> list[Any]:
        explicit = [self._given[place] for place in self._places]
        returned = tf.custom_gradient(self._forward)(*explicit, *(value for _, value in self._mapped))
        returned = list(returned) if isinstance(returned, tuple | list) else [returned]
        made = []
        for output in self._outputs:
            value = returned.pop(0) if _is_differentiable(output) else output
            made.append(with_mask(value, mask_of(output)))
        owners = owners_of_losses(self._layers, self._losses)
        for owner, loss in zip(owners, returned, strict=True):
            owner.add_loss(loss)
        for variable, value in self._scope.updates.values():
            variable.assign(value)
        return made

    def _forward(self, *tensors: Any) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        with unrecorded():
            self._outputs, self._losses = self._compute(self._first, tensors, self._scope)
        return (*filter(_is_differentiable, self._outputs), *self._losses), self._gradient_at(tensors)

    def _compute(
        self, compute: Compute, tensors: Sequence[Any], scope: Recording
    ) -> tuple[list[Any], list[Any]]:
        """The outputs and added losses, from these where it is differentiable and the rest as it was."""
        values = list(self._given)
        for place, tensor in zip(self._places, tensors, strict=False):
            values[place] = with_mask(tensor, self._masks[place])
        for (weight, _), value in zip(self._mapped, tensors[len(self._places) :], strict=True):
            scope.state_mapping[id(weight)] = value
        with scope, global_seed_outside_scopes():
            outputs = compute(values)
        return outputs, list(scope.losses)

    def _gradient_at(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        def gradient(*upstream: Any, variables: Sequence[Any] | None = None) -> Any:
            weights = list(variables or ())
            with tf.GradientTape() as tape:
                inputs = [tf.identity(tensor) for tensor in self._after(upstream, tensors)]
                tape.watch(inputs)
                with _after_all(upstream), self._call_state.again():
                    outputs, losses = self._compute(self._again, inputs, Recording(self._scope.seen))
                targets = [*filter(_is_differentiable, outputs), *losses]
            gradients = tape.gradient(targets, [*inputs, *weights], output_gradients=list(upstream))
            of_inputs, of_weights = gradients[: len(inputs)], gradients[len(inputs) :]
            of_inputs, of_weights = _tied(of_inputs, of_weights, through_data=self._through_data)
            return (of_inputs, of_weights) if variables is not None else of_inputs

        return gradient

    def _after(self, upstream: Sequence[Any], tensors: Sequence[Any]) -> Sequence[Any]:
        """The inputs, so that they cannot be used before the gradients from above are there."""
        if tf.executing_eagerly() or not self._through_data:
            return tensors
        return _after_by_data(tensors, upstream)


def _is_differentiable(value: Any) -> bool:
    return bool(value.dtype.is_floating or value.dtype.is_complex)


def _after_all(tensors: Sequence[Any]) -> Any:
    """A context whose operations wait for all of these; one operation stands for all of them."""
    if tf.executing_eagerly():
        return tf.control_dependencies(None)
    with tf.control_dependencies(list(tensors)):
        arrived = tf.no_op()
    return tf.control_dependencies([arrived])


def _tied(inputs: list[Any], weights: list[Any], *, through_data: bool) -> tuple[list[Any], list[Any]]:
    """Gradients that go on when all of them are there: then the segment is free, and its weights may change.

    A weight that was updated before the segment has read it again would make other gradients wrong. Reads are
    ordered before updates, but TensorFlow's optimiser drops that where shapes seem to keep the order already.
    """
    if tf.executing_eagerly():
        return inputs, weights
    parts = [part.values if isinstance(part, tf.IndexedSlices) else part for part in (*inputs, *weights)]
    parts = [part for part in parts if part is not None]
    with tf.control_dependencies(parts):
        tied = [tf.identity(part) if isinstance(part, tf.Tensor) else part for part in inputs]
        of_weights = [_same(part) for part in weights]
    return (_after_by_data(tied, parts) if through_data and parts else tied), of_weights


def _same(gradient: Any) -> Any:
    """A gradient as another tensor, which can wait for something."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else tf.identity(gradient)


def _after_by_data(tensors: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Tensors plus a zero that is unknown before the others are there."""
    firsts = [tf.reshape(other, (-1,))[:1] for other in others]
    arrived = tf.add_n([tf.cast(tf.cast(first, tf.bool), tf.float32) for first in firsts])
    zero = tf.where(arrived == arrived, 0.0, float("nan"))[0]
    return [tensor if tensor is None else tensor + tf.cast(zero, tensor.dtype) for tensor in tensors]


# Under this name a model knows that it is rematerialised, and how.
REMAT = "_memfit_remat"


@dataclass(frozen=True)
class Remat(Undoable):
    """The rematerialisation of a model; `undo` or leaving a `with` block takes it back.

    >>> with memfit.remat(model) as remat:
    ...     model.fit(x, y)
    >>> remat.segments
    11
    """

    model: Any
    segments: int
    plain_bytes: int  # activations and gradients, as expected, without and with segments
    peak_bytes: int
    extra_time: float  # of the forward pass that is computed again: 1.0 is all of it once
    left_plain: tuple[tuple[str, str], ...]  # layers that cannot be computed twice, and why
    _cuts: tuple[Callable[[], Any], ...]  # contexts in which a part of the model is cut
    _changes: ExitStack = field(default_factory=ExitStack)

    def apply(self) -> Self:
        """Cut the model; Keras traces its steps anew, now and when undone."""
        attributes = vars(self.model)
        with ExitStack() as changes:
            for cut in self._cuts:
                changes.enter_context(cut())
            attributes[REMAT] = self
            changes.callback(forget_traces, self.model)
            changes.callback(attributes.pop, REMAT, None)
            forget_traces(self.model)
            self._changes.push(changes.pop_all())
        return self


def remat_of(model: Any) -> Remat | None:
    """The rematerialisation that is applied to a model; None where there is none."""
    found = vars(model).get(REMAT)
    return found if isinstance(found, Remat) else None


def cut_functional(functional: Any, spans: Sequence[Span]) -> Any:
    """A context in which a graph of layers runs with these segments."""
    calls = calls_of(functional)
    keys = output_keys(functional)
    pieces = _pieces(calls, spans, (0, len(calls)), set(keys), in_backward_order(calls))

    def run(inputs: Any, wrap: Wrap) -> Any:
        tensors = dict(zip(input_keys(functional), keras.tree.flatten(inputs), strict=True))
        run_pieces(pieces, tensors, wrap)
        return keras.tree.pack_sequence_as(functional.output, [tensors[key] for key in keys])

    return instead_of_running_through(functional, run)


def cut_layer(layer: Any) -> Any:
    """A context in which one layer is computed again in the backward pass."""
    call = layer.call

    def compute(*arguments: Any, **options: Any) -> Any:
        given = (arguments, options)
        leaves = keras.tree.flatten(given)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
        returned: list[Any] = []

        def run(values: list[Any]) -> list[Any]:
            filled = list(leaves)
            for place, value in zip(places, values, strict=True):
                filled[place] = value
            again, keywords = keras.tree.pack_sequence_as(given, filled)
            outputs = call(*again, **keywords)
            returned[:] = [outputs]
            return [leaf for leaf in keras.tree.flatten(outputs) if isinstance(leaf, tf.Tensor)]

        tensors = compute_twice(run, run, [leaves[place] for place in places], layers=layers_and_self(layer))
        remaining = iter(tensors)
        return keras.tree.map_structure(
            lambda leaf: next(remaining) if isinstance(leaf, tf.Tensor) else leaf, returned[0]
        )

    return overridden(layer, "call", compute)


def _pieces(
    calls: list[Call], spans: Sequence[Span], within: Span, later: set[int], way_back: list[Call]
) -> list[Piece]:
    """Calls and segments of a span, in order; `later` are the tensors that are used after it."""
    pieces: list[Piece] = []
    place, end = within
    for start, stop in [*outermost(spans, within), (end, end)]:
        pieces.extend(calls[place:start])
        if stop > start:
            after = later.union(key for call in calls[stop:end] for key in call.inputs)
            inner = _pieces(calls, spans, (start, stop), after, way_back)
            outputs = [key for call in calls[start:stop] for key in call.outputs if key in after]
            pieces.append(Segment(inner, outputs=outputs, way_back=way_back))
        place = stop
    return pieces
