"""The layers of a subclassed model that are worth computing again, each on its own.

What happens between its layers is the user's code, so a segment is one call of one layer. Layers lie inside
layers; which level is best to cut at is read off one trace of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from memfit.graph.costs import cost_of
from memfit.graph.layer_costs import Liveness, bytes_of
from memfit.model.snapshots import Recording, draws_put_back
from memfit.model.traced_functions import operations_so_far, traced, why_not_repeatable
from memfit.private.keras.global_state import borrowed_global_seed
from memfit.private.keras.layers import each_layer_call, layers_and_self
from memfit.private.tensorflow.variables import backing_variable

_LeftPlain = tuple[tuple[str, str], ...]  # names of layers, and why


@dataclass(frozen=True)
class Sublayers:
    """The layers to cut at, and what that comes to."""

    layers: list[Any]
    plain_bytes: int
    peak_bytes: int
    extra_time: float
    left_plain: _LeftPlain


@dataclass
class _LayerCall:
    layer: Any
    depth: int
    start: int
    stop: int = 0
    inputs: list[Any] = field(default_factory=list)


def sublayers_worth_cutting(model: Any, specs: Any, room: float | None) -> Sublayers:
    """Trace a model on a batch like this, and choose the level of its layers with the smallest peak.

    Given how many bytes activations and gradients may take: only as many layers as that takes.
    """
    return _levels(model, specs).best(room)


def sublayers_for_shares(model: Any, specs: Any, shares: Sequence[float]) -> list[Sublayers]:
    """The same for shares of what the plain model keeps, and for the smallest peak, from one trace."""
    levels = _levels(model, specs)
    smallest = levels.best(None)
    return [*(levels.best(share * smallest.plain_bytes) for share in shares), smallest]


def _levels(model: Any, specs: Any) -> _Levels:
    calls: list[_LayerCall] = []
    open_calls: list[_LayerCall] = []
    turn: list[int] = []
    gradients: list[Any] = []

    def around(layer: Any, call: Any, given: Any) -> Any:
        one = _LayerCall(layer, len(open_calls), operations_so_far())
        one.inputs = [leaf for leaf in keras.tree.flatten(given) if isinstance(leaf, tf.Tensor)]
        open_calls.append(one)
        try:
            return call()
        finally:
            open_calls.pop()
            one.stop = operations_so_far()
            calls.append(one)

    def passes(inputs: Any) -> None:
        with Recording(), each_layer_call(around), tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(inputs, training=True))
        turn.append(operations_so_far())
        targets = [output for output in outputs if output.dtype.is_floating]
        found = tape.gradient(targets, [backing_variable(w) for w in model.trainable_variables])
        gradients.extend(gradient for gradient in found if gradient is not None)

    with draws_put_back(), borrowed_global_seed():
        concrete = traced(passes, specs)
    operations = concrete.graph.get_operations()
    return _Levels(calls, Liveness(operations, turn[0], gradients), operations)


class _Levels:
    """Composite layers by how deep they lie in the model, and what it comes to if some are cut."""

    def __init__(self, calls: list[_LayerCall], liveness: Liveness, operations: list[Any]) -> None:
        self._liveness, self._operations = liveness, operations
        self._saved = sum(liveness.saved_in(range(len(operations))).values())
        self._working = max(liveness.working, default=0)
        self._cost = sum(map(cost_of, operations[: liveness.turn]))
        self._composite = [c for c in calls if c.depth > 0 and len(layers_and_self(c.layer)) > 1]
        self._freed: dict[int, dict[str, int]] = {}  # by call: what it no longer saves

    def best(self, room: float | None) -> Sublayers:
        """The level with the smallest peak; with a budget, as few of its layers as that takes."""
        best = self._outcome([], ())
        for depth in sorted({call.depth for call in self._composite}):
            level = [call for call in self._composite if call.depth == depth]
            reasons = {c.layer.name: why_not_repeatable(self._operations[c.start : c.stop]) for c in level}
            usable = [call for call in level if reasons[call.layer.name] is None]
            left_plain = tuple((name, why) for name, why in reasons.items() if why is not None)
            outcome = self._outcome(usable, left_plain)
            if outcome.peak_bytes < best.peak_bytes:
                best = self._fewest(usable, left_plain, room) if room is not None else outcome
            if room is not None and best.peak_bytes <= room:
                break
        return best

    def _fewest(self, calls: list[_LayerCall], left_plain: _LeftPlain, room: float) -> Sublayers:
        """All of these, less what need not be cut to fit; what saves little for its time goes first."""
        outcome = self._outcome(calls, left_plain)

        def gain(layer: Any) -> float:
            mine = [call for call in calls if call.layer is layer]
            return sum(sum(self._freed_by(c).values()) for c in mine) / max(
                sum(map(self._cost_of, mine)), 1e-12
            )

        for layer in sorted(outcome.layers, key=gain):
            fewer = [call for call in calls if call.layer is not layer]
            offered = self._outcome(fewer, left_plain)
            if offered.peak_bytes <= room:
                calls, outcome = fewer, offered
        return outcome

    def _outcome(self, calls: list[_LayerCall], left_plain: _LeftPlain) -> Sublayers:
        liveness, inside = self._liveness, [self._freed_by(call) for call in calls]
        freed = {name: size for found in inside for name, size in found.items()}
        kept = {root.name: bytes_of(root) for call in calls for root in map(liveness.root, call.inputs)}
        largest = max((sum(found.values()) for found in inside), default=0)
        stays = self._saved - sum(freed.values()) + sum(s for n, s in kept.items() if n in freed)
        return Sublayers(
            layers=list({id(call.layer): call.layer for call in calls}.values()),
            plain_bytes=self._saved + self._working,
            peak_bytes=stays + largest + self._working,
            extra_time=sum(map(self._cost_of, calls)) / max(self._cost, 1e-12),
            left_plain=left_plain,
        )

    def _freed_by(self, call: _LayerCall) -> dict[str, int]:
        if id(call) not in self._freed:
            self._freed[id(call)] = self._liveness.saved_in(range(call.start, call.stop))
        return self._freed[id(call)]

    def _cost_of(self, call: _LayerCall) -> float:
        return sum(map(cost_of, self._operations[call.start : call.stop]))
