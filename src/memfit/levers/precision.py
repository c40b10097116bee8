"""A model that computes in 16 bits while its weights stay in float32, until undone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self

import keras

from memfit.core.errors import CannotLowerPrecision, InvalidPrecision, NotFinite
from memfit.levers import layer_statistics
from memfit.levers.float32_layers import (
    FULL,
    WRITES,
    Layers,
    layers_behind,
    makers_of_outputs,
    reasons_to_keep,
)
from memfit.levers.layer_statistics import LayerStatistics, SeenLayer, TrialBatch
from memfit.levers.undo import Undoable, forget_traces
from memfit.private.keras.layers import layers_and_self, layers_in
from memfit.private.keras.trainer import compiled_with, optimizer_targets, put_optimizer
from memfit.private.patching import overridden

# Under this name a model knows that it computes in 16 bits, and where it does not.
PRECISION = "_memfit_precision"

POLICIES = ("mixed_bfloat16", "mixed_float16", FULL)

_ASKED, _OVERFLOWS, _FAILS = "asked for", "overflows", "does not run in 16 bits"
_FIRM = (_ASKED, _OVERFLOWS, _FAILS, WRITES)  # without the other reasons training is only less exact


def apply_precision(model: Any, policy: str, *, keep: Sequence[str] = ()) -> Precision:
    """Let a built model compute in 16 bits from now on, in place; what was applied before gives way.

    Weights stay the same objects, in float32. Besides the layers in `keep` these compute in float32: those
    that make outputs, so that losses are exact; a softmax (in MultiHeadAttention nothing but that); Keras'
    layers that prepare data, whose numbers are raw and whose kernels often lack 16 bits; BatchNormalization;
    UnitNormalization, whose epsilon is 0 in float16; SpectralNormalization and others that write variables,
    which would be rounded; what adds losses, which Keras adds up in one type only; what fails in 16 bits.
    LayerNormalization, GroupNormalization and RMSNormalization compute in float32 inside and only hand on 16
    bits, so they change like the others. Layers whose type was chosen by the user are left alone.

    >>> with apply_precision(model, "mixed_float16", keep=("dense_3",)) as precision:
    ...     model.fit(x, y)
    >>> precision.kept
    (('dense_3', 'asked for'), ('head', 'makes an output of the model'))
    """
    _check(model, policy)
    before, layers = precision_of(model), Layers(model)
    names = (keep,) if isinstance(keep, str) else keep
    asked = [layer for name in names for layer in layers.named(name)]
    with ExitStack() as way_back:
        if before is not None:
            before.undo()
            way_back.callback(before.apply)
        precision = Precision(model, policy, layers, asked).apply()
        way_back.pop_all()
    return precision


def precision_of(model: Any) -> Precision | None:
    """The precision that is applied to a model; None where there is none."""
    found = vars(model).get(PRECISION)
    return found if isinstance(found, Precision) else None


class Precision(Undoable):
    """The change of a model's precision; `undo` or leaving a `with` block takes it back."""

    def __init__(self, model: Any, policy: str, layers: Layers, asked: Iterable[Any]) -> None:
        self.model, self.policy = model, policy
        self._layers = layers
        self._low = keras.dtype_policies.DTypePolicy(policy)
        self._before = [(layer, layer.dtype_policy) for layer in layers.changeable if policy != FULL]
        self._reasons: dict[int, str] = {}  # by the identity of the layer
        self._changes = ExitStack()
        for layer in asked:
            self._keep(layers.unit(layer), _ASKED)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """The names of layers that stay in float32, each with the reason."""
        kept = [layer for layer, _ in self._before if id(layer) in self._reasons]
        return tuple((self._layers.names[id(layer)], self._reasons[id(layer)]) for layer in kept)

    def apply(self) -> Self:
        """Change layers and optimizer; steps are traced anew, now and when undone."""
        attributes = vars(self.model)
        with ExitStack() as changes:
            changes.callback(self._forget_traces)
            changes.callback(self._set_types, full=True)
            if self._before:
                self._lower()
            if self.policy == "mixed_float16":
                scale_loss(self.model, changes)
            changes.callback(attributes.pop, PRECISION, None)
            attributes[PRECISION] = self
            self._forget_traces()
            self._changes.push(changes.pop_all())
        return self

    def keep_overflowing(self, batch: Any) -> tuple[tuple[str, str], ...]:
        """Set layers back to float32 until nothing overflows on a batch, forward or backward: which ones.

        The batch is `(x, y)` or `(x, y, sample_weight)`, of a few samples; training on it leaves no trace.
        """
        if precision_of(self.model) is not self or not self._before:
            return ()
        known, few = dict(self._reasons), layer_statistics.batch_of(batch)
        names = {name for name, _ in self.kept}
        try:
            in_full = self._in_full(few)
            low = [layer for layer, _ in self._before if self._is_low(layer)]
            large = [layer for layer in low if layer_statistics.exceeds(layer, self._low.compute_dtype)]
            self._keep((one for layer in large for one in self._layers.unit(layer)), _OVERFLOWS)
            self._settle(few, in_full, overflows=True)
        except BaseException:
            self._reasons = known
            self._set_types()
            raise
        self._forget_traces()
        return tuple(pair for pair in self.kept if pair[0] not in names)

    # The types of layers.

    def _lower(self) -> None:
        """Choose what stays in float32, change the rest, and see to it that the model runs."""
        layers = self._layers
        trial = layer_statistics.trial(self.model) if layers.have_own_code else None
        makers = makers_of_outputs(self.model) if trial is None else trial[1].makers
        for layer, reason in reasons_to_keep(layers.all, makers, () if trial is None else trial[1].written):
            self._keep(layers.unit(layer), reason)
        self._set_types()
        if trial is not None:
            self._settle(*trial)

    def _keep(self, layers: Iterable[Any], reason: str) -> None:
        for layer in layers:
            self._reasons.setdefault(id(layer), reason)

    def _set_types(self, *, full: bool = False) -> None:
        """Give every layer its type, but where another one was chosen since."""
        for layer, before in self._before:
            wanted = before if full or id(layer) in self._reasons else self._low
            if layer.dtype_policy is before or layer.dtype_policy is self._low:
                layer.dtype_policy = wanted

    def _is_low(self, layer: Any) -> bool:
        return bool(layer.dtype_policy is self._low)

    def _in_full(self, batch: TrialBatch) -> LayerStatistics:
        """A pass in float32, which has to go well for anything to be said of one in 16 bits."""
        self._set_types(full=True)
        try:
            in_full = layer_statistics.attempt(self.model, batch)
        finally:
            self._set_types()
        if in_full.error is not None:
            raise in_full.error
        if not in_full.is_finite:
            layer = layer_statistics.culprit(in_full)
            raise NotFinite(None if layer is None else self._layers.names.get(id(layer), layer.name))
        return in_full

    # What has to change until the model runs, and nothing overflows.

    def _settle(self, batch: TrialBatch, in_full: LayerStatistics, *, overflows: bool = False) -> None:
        for _ in range(2 * len(self._layers.all) + 1):
            self._set_types()
            now = layer_statistics.attempt(self.model, batch)
            if now.error is not None:
                self._make_it_run(now.failed, now.error)
                continue
            layers = self._overflowing(now, in_full) if overflows else []
            if not layers:
                return
            self._keep(layers, _OVERFLOWS)

    def _make_it_run(self, failed: Any, error: Exception) -> None:
        """Take a layer that does not run in 16 bits out of it, or what it cannot mix with them into it."""
        failing = self._layers.alike(failed)
        nearest = [inner for layer in failing for inner in layers_in(layer)]
        inside = [inner for layer in failing for inner in layers_and_self(layer)[1:]]
        for held in (nearest, inside):
            loose = [id(layer) for layer in held if self._reasons.get(id(layer), _ASKED) not in _FIRM]
            if loose:
                self._reasons = {key: why for key, why in self._reasons.items() if key not in loose}
                return
        units = [self._layers.unit(layer) for layer in failing or layers_behind(failed)]
        layers = [layer for unit in units for layer in unit if self._is_low(layer)]
        if failed is self.model or not layers:
            raise CannotLowerPrecision(
                _in_words(error),
                suggestion='memfit.remat(model), or code that says "compute_dtype" for float32',
            )
        self._keep(layers, _FAILS)

    def _overflowing(self, now: LayerStatistics, in_full: LayerStatistics) -> list[Any]:
        """The layers to take out of 16 bits next; empty where nothing overflows."""
        found = [
            layer for seen in layer_statistics.overflowing(now, in_full) for layer in self._to_blame(seen)
        ]
        if found or now.is_finite:
            return found
        for seen in [*layer_statistics.with_infinite_gradients(now, in_full), *now.calls[::-1]]:
            if found := self._to_blame(seen):
                return found
        return []

    def _to_blame(self, seen: SeenLayer) -> list[Any]:
        """The layers that computed in 16 bits in a call; of one that holds others, first that layer alone."""
        units = []
        for layer in layers_behind(seen.operation):
            alone = self._is_low(layer) and not self._layers.is_one(layer)
            units.append([layer] if alone else self._layers.unit(layer))
        return [layer for unit in units for layer in unit if self._is_low(layer)]

    def _forget_traces(self) -> None:
        for layer in self._layers.all:
            forget_traces(layer)


def _check(model: Any, policy: str) -> None:
    if policy not in POLICIES:
        raise InvalidPrecision(policy, known=POLICIES)
    if not isinstance(model, keras.Model):
        raise CannotLowerPrecision(
            f"expected a keras.Model, received {type(model).__name__}",
            suggestion='apply_precision(model, "mixed_bfloat16")',
        )
    if not model.built:
        raise CannotLowerPrecision(
            "it has not been built, so that its layers are not known yet",
            suggestion="model.build((None, ...)), or call the model on a batch first",
        )


def _in_words(error: Exception | None) -> str:
    lines = [line for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return f"{type(error).__name__}: {(told or lines or [''])[0].strip().rstrip('.')}"


def scale_loss(model: Any, changes: ExitStack) -> None:
    """Put a compiled model's optimizer into a LossScaleOptimizer until the changes are taken back.

    An optimizer from a `compile` in between stays, without the one that Keras put around it meanwhile.
    """
    before = getattr(model, "optimizer", None)
    if before is None or _scales(before):
        changes.callback(_take_out, model, but=before)
        return
    factor = before.loss_scale_factor  # which a LossScaleOptimizer takes away
    changes.callback(setattr, before, "loss_scale_factor", factor)
    scaling = keras.optimizers.LossScaleOptimizer(before)
    if before.built:
        # Not every optimizer notices that it was built before, and it must not get new slots.
        with overridden(before, "build", lambda variables: None):
            scaling.build(optimizer_targets(before))
    put_optimizer(model, scaling)
    changes.callback(_take_out, model, ours=scaling)


def _take_out(model: Any, *, ours: Any = None, but: Any = None) -> None:
    """Put the inner optimizer back in the place of ours, or of one that Keras put around it by itself."""
    now: Any = getattr(model, "optimizer", None)
    if now is but or not _scales(now):
        return
    if now is ours or compiled_with(model) is now.inner_optimizer:
        put_optimizer(model, now.inner_optimizer)


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
