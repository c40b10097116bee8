"""The rematerialisation of a model: programs say what its calls cost, plans where to cut, runs cut it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.core.errors import CannotRematerialise, DoesNotFit, NothingToGain
from memfit.core.records import Cut, LayerCall, LayerGraph
from memfit.core.records.programs import Span
from memfit.core.units import format_size
from memfit.graph.layer_costs import layer_graph
from memfit.graph.sublayers import Sublayers, sublayers_for_shares, sublayers_worth_cutting
from memfit.levers.float32_layers import Layers
from memfit.levers.rematerialised import Remat, cut_functional, cut_layer, remat_of
from memfit.model.calls import calls_of
from memfit.model.training_data import filled, leaves_of
from memfit.private.keras.layers import built_shapes, functional_of, layers_and_self
from memfit.private.keras.trainer import optimizer_variables
from memfit.rematerialising.cut_search import Cuts, CutSearch, cuts_of

logger = logging.getLogger("memfit")

_OPEN_DIMENSION = 64  # where neither model nor data say how long it is, and only ratios matter
_BATCH_SIZE = 32  # likewise
_GAIN = 0.95
_MOST_LEVELS = 4


@dataclass(frozen=True)
class _Chosen:
    """The chosen cuts, with their bytes and their extra time."""

    cuts: list[Callable[[], Any]]  # contexts in which a part is cut
    segments: int
    plain_bytes: int
    peak_bytes: int
    extra_time: float
    left_plain: tuple[tuple[str, str], ...]


def rematerialise(
    model: Any, *, budget_bytes: int | None, batch_size: int | None, data: Any, levels: int
) -> Remat:
    """Cut a model in place so that it keeps fewer activations; cuts of before give way to the new ones."""
    _check(model, budget_bytes, batch_size, levels)
    before = remat_of(model)
    if before is None:
        return _planned(model, budget_bytes, batch_size, data, levels).apply()
    before.undo()
    try:
        return _planned(model, budget_bytes, batch_size, data, levels).apply()
    except BaseException:
        before.apply()
        raise


def _planned(model: Any, budget_bytes: int | None, batch_size: int | None, data: Any, levels: int) -> Remat:
    """The rematerialisation to apply; the model is as it was."""
    batch_size = batch_size or _BATCH_SIZE
    specs = _specs(model, batch_size, data, exact=budget_bytes is not None)
    base = _base_bytes(model, specs)
    room = None if budget_bytes is None else budget_bytes - base
    chosen = _choose(model, specs, room, levels)
    if room is not None and chosen.peak_bytes > room:
        raise _does_not_fit(chosen, base, budget_bytes or 0, batch_size)
    if room is None and chosen.peak_bytes > _GAIN * chosen.plain_bytes:
        raise NothingToGain(
            chosen.plain_bytes,
            chosen.peak_bytes,
            batch_size=batch_size,
            left_plain=_in_words(chosen.left_plain),
        )
    if chosen.left_plain:
        logger.info("%s", _in_words(chosen.left_plain))
    return Remat(
        model,
        segments=chosen.segments,
        plain_bytes=chosen.plain_bytes,
        peak_bytes=chosen.peak_bytes,
        extra_time=chosen.extra_time,
        left_plain=chosen.left_plain,
        _cuts=tuple(chosen.cuts),
    )


def _choose(model: Any, specs: Any, room: float | None, levels: int) -> _Chosen:
    if functional_of(model) is None:
        try:
            return _of_sublayers(sublayers_worth_cutting(model, specs, room))
        except Exception as error:
            if all(layer.built for layer in layers_and_self(model)):
                raise
            raise _not_built() from error  # else its call does not use them
    graph = layer_graph(model, specs)
    cuts = _cuts(graph, room, levels)
    if graph.one_call_keeps_most:
        inside = sublayers_worth_cutting(model, specs, room)
        if inside.peak_bytes < cuts.peak_bytes:
            return _of_sublayers(inside)
    return _Chosen(
        cuts=_cutting(model, cuts_of(graph, cuts.spans)),
        segments=len(cuts.spans),
        plain_bytes=cuts.plain_bytes,
        peak_bytes=cuts.peak_bytes,
        extra_time=cuts.extra_cost / max(cuts.plain_cost, 1e-12),
        left_plain=tuple((call.name, call.why_not) for call in graph.calls if call.why_not is not None),
    )


def _cuts(graph: LayerGraph, room: float | None, levels: int) -> Cuts:
    """The smallest peak; with a budget, the least time within it, in as few levels as it takes."""
    search = CutSearch(graph)
    if room is None:
        return search.smallest_peak(levels=levels)
    quickest = search.least_time(room)
    if quickest is not None:
        return quickest
    deeper = [search.smallest_peak(levels=level) for level in range(1, _MOST_LEVELS + 1)]
    fitting = [cuts for cuts in deeper if cuts.peak_bytes <= room]
    return fitting[0] if fitting else min(deeper, key=lambda cuts: cuts.peak_bytes)


def graph_of_sublayers(
    model: Any, specs: Any, shares: Sequence[float]
) -> tuple[LayerGraph, list[tuple[Span, ...]]]:
    """Layers of a subclassed model that can be computed again, and which of them for shares of its peak."""
    found = sublayers_for_shares(model, specs, shares)
    positions = {id(layer): number for number, layer in enumerate(layers_and_self(model))}
    layers = list({id(layer): layer for level in found for layer in level.layers}.values())
    places, names = {id(layer): place for place, layer in enumerate(layers)}, Layers(model).names
    calls = tuple(
        LayerCall(names[id(layer)], (positions[id(layer)],), (), (), saved_bytes=0, working_bytes=0, cost=0.0)
        for layer in layers
    )
    levels = [
        tuple((place, place + 1) for place in sorted(places[id(layer)] for layer in level.layers))
        for level in found
    ]
    return LayerGraph(0, calls, (), (), alone=True), [spans for spans in dict.fromkeys(levels) if spans]


def apply_cuts(model: Any, cuts: tuple[Cut, ...]) -> Remat:
    """Cut a model in place, as a plan says."""
    return Remat(
        model,
        segments=len(cuts),
        plain_bytes=0,
        peak_bytes=0,
        extra_time=0.0,
        left_plain=(),
        _cuts=tuple(_cutting(model, cuts)),
    ).apply()


def _cutting(model: Any, cuts: tuple[Cut, ...]) -> list[Callable[[], Any]]:
    """A context for each nested model, or each layer that is cut alone, in which it is cut."""
    layers = layers_and_self(model)
    alone = [partial(cut_layer, layers[place]) for cut in cuts if cut.is_one_layer for place in cut.path]
    found: dict[tuple[int, ...], list[Span]] = {}
    for cut in cuts:
        if not cut.is_one_layer:
            found.setdefault(cut.path, []).append((cut.start, cut.stop))
    return alone + [partial(cut_functional, _nested(model, path), within) for path, within in found.items()]


def _nested(model: Any, path: tuple[int, ...]) -> Any:
    functional = functional_of(model)
    for position in path:
        functional = calls_of(functional)[position].nested
    return functional


def _of_sublayers(found: Sublayers) -> _Chosen:
    return _Chosen(
        cuts=[partial(cut_layer, layer) for layer in found.layers],
        segments=len(found.layers),
        plain_bytes=found.plain_bytes,
        peak_bytes=found.peak_bytes,
        extra_time=found.extra_time,
        left_plain=found.left_plain,
    )


def _check(model: Any, budget_bytes: int | None, batch_size: int | None, levels: int) -> None:
    if not isinstance(model, keras.Model):
        raise CannotRematerialise(
            f"expected a keras.Model, received {type(model).__name__}", suggestion="memfit.remat(model)"
        )
    if not model.built:
        raise _not_built()
    if budget_bytes is not None and batch_size is None:
        raise CannotRematerialise(
            "a budget says nothing without a batch size",
            suggestion="memfit.remat(model, budget=..., batch_size=64)",
        )
    if not 1 <= levels <= _MOST_LEVELS:
        raise CannotRematerialise(
            f"expected from 1 to {_MOST_LEVELS} levels, received {levels}",
            suggestion="memfit.remat(model, levels=2)",
        )


def _not_built() -> CannotRematerialise:
    return CannotRematerialise(
        "it has not been built, so its shapes are unknown",
        suggestion="model.build((None, ...)), or call it once on a batch, before memfit.remat(model)",
    )


def _specs(model: Any, batch_size: int, data: Any, *, exact: bool) -> Any:
    """Shapes and types of a batch of the model's inputs."""
    if data is not None:
        given = [_spec(leaf.shape, leaf.dtype, batch_size, exact) for leaf in leaves_of(data)]
        return filled(data, given)
    functional = functional_of(model)
    if functional is not None:
        return keras.tree.map_structure(
            lambda t: _spec(t.shape, t.dtype, batch_size, exact), functional.input
        )
    shapes = built_shapes(model)
    if shapes is None:
        raise CannotRematerialise(
            "nothing says the shapes of its inputs", suggestion="memfit.remat(model, data=x[:32])"
        )
    return keras.tree.map_shape_structure(
        lambda shape: _spec(shape, keras.config.floatx(), batch_size, exact), shapes
    )


def _spec(shape: Any, dtype: Any, batch_size: int, exact: bool) -> Any:
    inner = list(shape)[1:]
    if exact and None in inner:
        raise CannotRematerialise(
            f"an input of shape {tuple(shape)} has an open dimension, so the size of a batch is unknown",
            suggestion="memfit.remat(model, budget=..., batch_size=..., data=x[:1])",
        )
    sizes = [_OPEN_DIMENSION if size is None else size for size in inner]
    return tf.TensorSpec((batch_size, *sizes), tf.as_dtype(dtype))


def base_bytes(model: Any, batch_size: int) -> int:
    """The bytes of weights, optimizer and a batch, which a budget has to hold besides activations."""
    return _base_bytes(model, _specs(model, batch_size, None, exact=False))


def _base_bytes(model: Any, specs: Any) -> int:
    """The bytes besides activations and gradients: weights, optimizer (else as for Adam), the batch."""
    weights = sum(_bytes_of(variable) for variable in model.variables)
    slots = sum(_bytes_of(variable) for variable in optimizer_variables(model))
    if slots <= 16:  # not built yet
        slots = 2 * sum(_bytes_of(variable) for variable in model.trainable_variables)
    batch = sum(spec.shape.num_elements() * spec.dtype.size for spec in leaves_of(specs))
    return int(weights + slots + batch)


def _bytes_of(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size)


def _does_not_fit(chosen: _Chosen, base: int, budget_bytes: int, batch_size: int) -> DoesNotFit:
    smallest = base + chosen.peak_bytes
    return DoesNotFit(
        f"a batch of {batch_size} does not fit a budget of {format_size(budget_bytes)}.",
        f"Smallest peak with rematerialisation: {smallest:,} bytes ({format_size(smallest)})",
        f"Weights, optimizer and batch alone: {base:,} bytes; as it is: {base + chosen.plain_bytes:,} bytes",
        suggestion=f'memfit.remat(model, budget="{(smallest >> 20) + 1}MiB", batch_size={batch_size})',
        limit_bytes=budget_bytes,
    )


def _in_words(left_plain: tuple[tuple[str, str], ...]) -> str | None:
    if not left_plain:
        return None
    layers = ", ".join(f"{name} ({reason})" for name, reason in left_plain)
    return f"Cannot be computed twice, and keep their activations: {layers}."
