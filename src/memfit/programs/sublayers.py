"""The layers of a subclassed model that are worth computing again, each on its own.

What happens between its layers is the user's code, so a segment is one call of one layer. Layers lie inside
layers; which level is best to cut at is read off one trace of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from memfit.models import internals
from memfit.models.graphs import graph, why_not_repeatable
from memfit.models.scopes import Recording
from memfit.programs.costs import cost_of
from memfit.programs.liveness import Liveness, bytes_of


@dataclass(frozen=True)
class Sublayers:
    """The layers to cut at, and what that comes to."""

    layers: list[Any]
    plain_bytes: int
    peak_bytes: int
    extra_time: float
    left_plain: tuple[tuple[str, str], ...]


@dataclass
class _LayerCall:
    layer: Any
    depth: int
    start: int
    stop: int = 0
    inputs: list[Any] = field(default_factory=list)


def sublayers_worth_cutting(model: Any, specs: Any) -> Sublayers:
    """Trace a model on a batch like this, and choose the level of its layers with the smallest peak."""
    calls: list[_LayerCall] = []
    open_calls: list[_LayerCall] = []
    turn: list[int] = []
    gradients: list[Any] = []

    def around(layer: Any, call: Any, given: Any) -> Any:
        one = _LayerCall(layer, len(open_calls), _here())
        one.inputs = [leaf for leaf in keras.tree.flatten(given) if isinstance(leaf, tf.Tensor)]
        open_calls.append(one)
        try:
            return call()
        finally:
            open_calls.pop()
            one.stop = _here()
            calls.append(one)

    def passes(inputs: Any) -> None:
        with Recording(), internals.each_layer_call(around), tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(inputs, training=True))
        turn.append(_here())
        targets = [output for output in outputs if output.dtype.is_floating]
        found = tape.gradient(targets, [internals.backing_variable(w) for w in model.trainable_variables])
        gradients.extend(gradient for gradient in found if gradient is not None)

    with internals.borrowed_global_seed():
        concrete = graph(passes).get_concrete_function(specs)
    operations = concrete.graph.get_operations()
    return _best_level(calls, Liveness(operations, turn[0], gradients), operations)


def _here() -> int:
    return len(tf.compat.v1.get_default_graph().get_operations())


def _best_level(calls: list[_LayerCall], liveness: Liveness, operations: list[Any]) -> Sublayers:
    composite = [c for c in calls if c.depth > 0 and len(internals.all_layers(c.layer)) > 1]
    working = max(liveness.working, default=0)
    total = sum(liveness.saved_in(range(len(operations))).values())
    best = Sublayers([], total + working, total + working, 0.0, ())
    for depth in sorted({call.depth for call in composite}):
        level = [call for call in composite if call.depth == depth]
        reasons = {c.layer.name: why_not_repeatable(operations[c.start : c.stop]) for c in level}
        usable = [call for call in level if reasons[call.layer.name] is None]
        inside = [liveness.saved_in(range(call.start, call.stop)) for call in usable]
        freed = {name: size for found in inside for name, size in found.items()}
        kept = {root.name: bytes_of(root) for call in usable for root in map(liveness.root, call.inputs)}
        largest = max((sum(found.values()) for found in inside), default=0)
        peak = total - sum(freed.values()) + sum(s for n, s in kept.items() if n in freed) + largest + working
        if peak < best.peak_bytes:
            costs = [sum(map(cost_of, operations[call.start : call.stop])) for call in usable]
            whole = sum(map(cost_of, operations[: liveness.turn]))
            best = Sublayers(
                list({id(call.layer): call.layer for call in usable}.values()),
                total + working,
                peak,
                sum(costs) / max(whole, 1e-12),
                tuple((name, why) for name, why in reasons.items() if why is not None),
            )
    return best
