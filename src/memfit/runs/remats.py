"""A model whose activations are computed again in the backward pass instead of being kept, until undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import keras
import tensorflow as tf

from memfit.models import internals
from memfit.models.calls import Call, Wrap, calls_of, in_backward_order, input_keys, output_keys
from memfit.runs.keras_internals import overridden
from memfit.runs.segments import Piece, Segment, compute_twice, run_pieces
from memfit.runs.undoing import Undoable, forget_traces
from memfit.spans import Span, outermost

# Under this name a model knows that it is rematerialised, and how.
REMAT = "_memfit_remat"


@dataclass(frozen=True)
class Remat(Undoable):
    """What was done to a model; `undo` or leaving a `with` block takes it back.

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
    """How a model is rematerialised; None where it is not."""
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

    return internals.instead_of_running_through(functional, run)


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

        tensors = compute_twice(
            run, run, [leaves[place] for place in places], layers=internals.all_layers(layer)
        )
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
