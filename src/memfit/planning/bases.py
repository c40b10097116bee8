"""The steps that a search starts from: the one there is, in other precisions, and with XLA on or off."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from memfit import caches
from memfit.errors import CannotLowerPrecision, MemfitError
from memfit.estimates.calibrations import what_is_unknown
from memfit.foresight import Foresight, foresee
from memfit.models import internals
from memfit.models.specs import training_specs
from memfit.planning.levers import jit_compiled
from memfit.planning.wishes import Wish
from memfit.plans.precisions import in_low_precision
from memfit.plans.search import SHARES, Base
from memfit.plans.sizes import Sizes
from memfit.programs.layers import layer_graph
from memfit.programs.timings import machine_key, time_16_bits
from memfit.programs.traces import specs_at
from memfit.records import LayerGraph, Lever, Program, Slowdown
from memfit.rematerialise import graph_of_sublayers
from memfit.runs.computations import ModelStep
from memfit.runs.kept_layers import Layers
from memfit.runs.precisions import apply_precision
from memfit.runs.remats import remat_of
from memfit.spans import Span

_SMALLER = 4  # the second batch size that is read is so many times smaller
_WIDE_INSIDE = (
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.RMSNormalization,
)
_PRECISIONS: dict[str, Literal["bfloat16", "float16"]] = {
    "mixed_bfloat16": "bfloat16",
    "mixed_float16": "float16",
}


@dataclass(frozen=True)
class Steps:
    """The bases of a search, the trace behind the first of them, and what nobody knows about them."""

    bases: tuple[Base, ...]
    plain: Foresight
    whole: Program
    left_out: tuple[str, ...]
    traces: dict[Any, Foresight] = field(default_factory=dict)  # of what levers have made of it


def steps_for(model: Any, wish: Wish, tell: Callable[[str], None], *, known: Steps | None = None) -> Steps:
    """All steps that may be taken as they are or changed by levers; what is known need not be traced."""
    tell("Tracing a step")
    plain = foresee(model, wish.data) if known is None else known.plain
    plain.whole.begin()
    finding = _Finding(model, wish, tell, None if known is None else known.bases[0])
    finding.look_for_cuts()
    whole = plain.at(wish.batch_size)
    first = finding.base(plain)
    bases, left_out = [first], [*whole.left_out, *what_is_unknown(whole), *finding.why_not(whole)]
    if "xla" in wish.allow and not model.compiled:
        left_out.append("xla, since the model is not compiled")
    elif "xla" in wish.allow:
        tell("Compiling with XLA" if whole.method == "graph" else "Tracing without XLA")
        bases += finding.with_xla_toggled(whole, left_out)
    if "precision" in wish.allow:
        narrowed = next((base for base in bases if not base.jit_compile), None)
        if model.dtype_policy.name == "float32" and narrowed is not None:
            bases += finding.in_low_precisions(narrowed, left_out)
        else:
            what = "XLA compiles the step" if narrowed is None else f"the model is {model.dtype_policy.name}"
            left_out.append(f"precision, since {what}")
    traces = {} if known is None else known.traces
    return Steps(tuple(bases), plain, whole, tuple(left_out), traces)


class _Finding:
    """Makes bases of one model for one wish."""

    def __init__(self, model: Any, wish: Wish, tell: Callable[[str], None], known: Base | None) -> None:
        self._model, self._wish, self._tell, self._known = model, wish, tell, known
        self._reasons: dict[Lever, str | None] = {
            "micro_batch": ModelStep(model, "train_step").why_not_split() if model.compiled else None,
            "remat": _why_not_cut(model),
        }

    def look_for_cuts(self) -> None:
        """Do what takes a while and needs no trace of the step."""
        if self._may("remat") and not (self._model.compiled and self._model.jit_compile):
            _ = self._layers

    def base(self, foresight: Foresight) -> Base:
        """A step with all levers that can be pulled on it."""
        whole = foresight.at(self._wish.batch_size)
        if whole.method == "xla":
            return Base(
                foresight.at,
                may_split=False,
                precision=self._policy,
                jit_compile=True,
                relative_time=1.0,
            )
        smaller = foresight.at(max(1, self._wish.batch_size // _SMALLER))
        sizes = Sizes(smaller, whole)
        layers, cuts = self._layers if self._may("remat") else (None, ())
        return Base(
            sizes.at if sizes.are_alike else foresight.at,
            layers,
            cuts,
            may_split=self._may("micro_batch"),
            precision=self._policy,
        )

    def why_not(self, whole: Program) -> Iterator[str]:
        """Levers that are allowed and cannot be pulled, each with its reason."""
        for lever, why_not in self._reasons.items():
            reason = "XLA compiles the step" if whole.method == "xla" else why_not
            if lever in self._wish.allow and reason is not None:
                yield f"{lever}, since {reason}"

    def with_xla_toggled(self, whole: Program, left_out: list[str]) -> list[Base]:
        """The step compiled by XLA where it is not, and as a graph where it is."""
        switched_on = whole.method == "graph"
        try:
            with jit_compiled(self._model, switched_on):
                base = self.base(foresee(self._model, self._wish.data))
        except (MemfitError, tf.errors.OpError) as error:  # XLA cannot compile everything
            left_out.append(f"xla, since {str(error).splitlines()[0].removesuffix('.')}")
            return []
        what = "XLA compiles the step" if switched_on else "XLA is switched off"
        note = f"{what}: how much faster or slower that is, is not foretold."
        return [dataclasses.replace(base, notes=(note,))]

    def in_low_precisions(self, wide: Base, left_out: list[str]) -> list[Base]:
        """A step in each of the precisions that Keras mixes with float32."""
        self._tell("Timing operations in 16 bits")
        found = []
        for policy, dtype in _PRECISIONS.items():
            try:
                with apply_precision(self._model, policy, keep=self._wish.float32_layers) as precision:
                    kept = [name for name, _ in precision.kept]
            except CannotLowerPrecision as error:
                left_out.append(f"{policy}, since {error.reason}")
                continue
            computed_wide = frozenset((*kept, *self._wide_inside))
            found.append(
                Base(
                    functools.partial(_narrow, wide.program_at, computed_wide, _slowdown(dtype)),
                    wide.layers,
                    wide.cuts,
                    may_split=wide.may_split,
                    precision=policy,
                    exact=False,
                    notes=(*wide.notes, f"Layers compute in {dtype}, but for {_counted(len(kept))}."),
                )
            )
        return found

    @property
    def _wide_inside(self) -> list[str]:
        """Layers that Keras computes in float32 whatever they take and make."""
        layers = Layers(self._model)
        return [layers.names[id(layer)] for layer in layers.all if isinstance(layer, _WIDE_INSIDE)]

    @property
    def _policy(self) -> str:
        return str(self._model.dtype_policy.name)

    @functools.cached_property
    def _layers(self) -> tuple[LayerGraph | None, Sequence[tuple[Span, ...]]]:
        """What can be cut, and for layers that are segments of their own, which of them."""
        if self._known is not None and self._known.layers is not None:
            return self._known.layers, self._known.cuts
        self._tell("Looking for cuts")
        inputs = specs_at(training_specs(self._model, self._wish.data), self._wish.batch_size)[0]
        if internals.functional_of(self._model) is not None:
            return layer_graph(self._model, keras.tree.flatten(inputs)), ()
        try:
            return graph_of_sublayers(self._model, inputs, SHARES)
        except Exception as error:  # noqa: BLE001 - a model that only its own step knows how to call
            self._reasons["remat"] = f"the model cannot be called on its inputs ({type(error).__name__})"
            return None, ()

    def _may(self, lever: Lever) -> bool:
        return lever in self._wish.allow and self._reasons[lever] is None


def _why_not_cut(model: Any) -> str | None:
    if remat_of(model) is not None:
        return "the model is rematerialised already"
    if not model.built or any(not layer.built for layer in internals.all_layers(model)):
        return "the model has not been built"
    return None


def _narrow(
    program_at: Callable[[int], Program], kept: frozenset[str], slowdown: Slowdown, batch_size: int
) -> Program:
    return in_low_precision(program_at(batch_size), kept, slowdown)


def _slowdown(dtype: str) -> Slowdown:
    """What was timed on this machine before, else now: the same plan for the same question."""
    key = f"{dtype}-{machine_key()}"
    known = caches.recall(Slowdown, key)
    if known is None:
        known = time_16_bits(dtype)
        caches.keep(key, known)
    return known


def _counted(kept: int) -> str:
    return "one layer that stays in float32" if kept == 1 else f"{kept} layers that stay in float32"
