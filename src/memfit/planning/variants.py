"""The steps that a search starts from: the one there is, in other precisions, and with XLA on or off."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from memfit.core import cache
from memfit.core.errors import CannotLowerPrecision, MemfitError
from memfit.core.records import Choice, LayerGraph, Lever, Program, Slowdown
from memfit.core.records.plans import PlanRequest
from memfit.core.records.programs import Span
from memfit.estimating.simulator.peaks import what_is_unknown
from memfit.estimating.step_program import StepProgram, step_program
from memfit.graph.costs import machine_key, time_16_bits
from memfit.graph.layer_costs import layer_graph
from memfit.graph.trace import specs_at
from memfit.levers.float32_layers import Layers
from memfit.levers.precision import Precision, apply_precision
from memfit.levers.rematerialised import REMAT
from memfit.model.training_data import training_specs, why_not_split
from memfit.planning.search.fastest import SHARES, Base
from memfit.planning.search.low_precision import in_low_precision
from memfit.planning.search.micro_batches import ResizableProgram, regions_of
from memfit.private.keras.layers import functional_of
from memfit.rematerialising.rematerialise import apply_cuts, graph_of_sublayers

_OTHER_OPTIMIZERS = "the optimizer that the model was compiled with does not make the update"
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
class StepVariants:
    """The bases of a search, the trace behind the first of them, and what is unknown about them."""

    bases: tuple[Base, ...]
    plain: StepProgram
    whole: Program
    left_out: tuple[str, ...]
    traces: dict[Any, StepProgram] = field(default_factory=dict)  # of what levers have made of it
    onednn: bool | None = None  # as if TensorFlow ran with oneDNN, or without; None: as it runs

    def with_onednn(self, onednn: bool) -> StepVariants:
        """The same trace in the other world; bases have to be made anew."""
        return dataclasses.replace(self, plain=self.plain.with_onednn(onednn), traces={}, onednn=onednn)


def variants_of(
    model: Any, request: PlanRequest, tell: Callable[[str], None], *, known: StepVariants | None = None
) -> StepVariants:
    """All steps that may be taken as they are or changed by levers; what is known need not be traced."""
    tell("Tracing a step")
    plain = step_program(model, request.data) if known is None else known.plain
    plain.begin()
    finding = _Finding(model, request, tell, None if known is None else known.bases[0])
    finding.look_for_cuts()
    whole = plain.at(request.batch_size)
    first = finding.base(plain)
    bases, left_out = [first], [*whole.left_out, *what_is_unknown(whole), *finding.why_not(whole)]
    if "xla" in request.allow and not model.compiled:
        left_out.append("xla, since the model is not compiled")
    elif "xla" in request.allow:
        tell("Compiling with XLA" if whole.method == "graph" else "Tracing without XLA")
        bases += finding.with_xla_toggled(whole, left_out)
    if "precision" in request.allow:
        narrowed = next((base for base in bases if not base.jit_compile), None)
        if model.dtype_policy.name == "float32" and narrowed is not None:
            bases += finding.in_low_precisions(narrowed, left_out)
        else:
            what = "XLA compiles the step" if narrowed is None else f"the model is {model.dtype_policy.name}"
            left_out.append(f"precision, since {what}")
    if known is not None:
        return dataclasses.replace(
            known, bases=tuple(bases), plain=plain, whole=whole, left_out=tuple(left_out)
        )
    return StepVariants(tuple(bases), plain, whole, tuple(left_out))


class _Finding:
    """Makes bases of one model for one request."""

    def __init__(
        self, model: Any, request: PlanRequest, tell: Callable[[str], None], known: Base | None
    ) -> None:
        self._model, self._request, self._tell, self._known = model, request, tell, known
        self._reasons: dict[Lever, str | None] = {
            "micro_batch": why_not_split(model) if model.compiled else None,
            "remat": _why_not_cut(model),
        }

    def look_for_cuts(self) -> None:
        """Do what takes a while and needs no trace of the step."""
        if self._may("remat") and not (self._model.compiled and self._model.jit_compile):
            _ = self._layers

    def base(self, foresight: StepProgram) -> Base:
        """A step with all levers that can be pulled on it."""
        whole = foresight.at(self._request.batch_size)
        if whole.method == "xla":
            return Base(
                foresight.at,
                may_split=False,
                precision=self._policy,
                jit_compile=True,
                relative_time=1.0,
            )
        if not regions_of(whole).update:
            self._reasons["micro_batch"] = self._reasons["micro_batch"] or _OTHER_OPTIMIZERS
        layers, cuts = self._layers if self._may("remat") else (None, ())
        return Base(
            self._at_any_size(foresight, whole),
            layers,
            cuts,
            may_split=self._may("micro_batch"),
            precision=self._policy,
        )

    def _at_any_size(self, foresight: StepProgram, whole: Program) -> Callable[[int], Program]:
        """The Programs of a step by batch size: read off two of them where these are alike."""
        if foresight.one_size is not None:
            return foresight.at
        sizes = ResizableProgram(foresight.at(max(1, self._request.batch_size // _SMALLER)), whole)
        return sizes.at if sizes.are_alike else foresight.at

    def why_not(self, whole: Program) -> Iterator[str]:
        """Levers that are allowed and cannot be pulled, each with its reason."""
        for lever, why_not in self._reasons.items():
            reason = "XLA compiles the step" if whole.method == "xla" else why_not
            if lever in self._request.allow and reason is not None:
                yield f"{lever}, since {reason}"

    def with_xla_toggled(self, whole: Program, left_out: list[str]) -> list[Base]:
        """The step compiled by XLA where it is not, and as a graph where it is."""
        switched_on = whole.method == "graph"
        try:
            with jit_compiled(self._model, switched_on):
                base = self.base(step_program(self._model, self._request.data))
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
                with apply_precision(self._model, policy, keep=self._request.float32_layers) as precision:
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
        """The layers that can be cut, and where they are segments of their own, the cuts to choose from."""
        if self._known is not None and self._known.layers is not None:
            return self._known.layers, self._known.cuts
        self._tell("Looking for cuts")
        inputs = specs_at(training_specs(self._model, self._request.data), self._request.batch_size)[0]
        graph = None if functional_of(self._model) is None else layer_graph(self._model, inputs)
        if graph is not None and not graph.one_call_keeps_most:
            return graph, ()
        try:
            inside = graph_of_sublayers(self._model, inputs, SHARES)
            return (graph, ()) if graph is not None and not inside[1] else inside
        except Exception as error:  # noqa: BLE001 - a model that only its own step knows how to call
            self._reasons["remat"] = f"the model cannot be called on its inputs ({type(error).__name__})"
            return None, ()

    def _may(self, lever: Lever) -> bool:
        return lever in self._request.allow and self._reasons[lever] is None


def _why_not_cut(model: Any) -> str | None:
    if REMAT in vars(model):
        return "the model is rematerialised already"
    if not model.built:
        return "the model has not been built"
    return None


def _narrow(
    program_at: Callable[[int], Program], kept: frozenset[str], slowdown: Slowdown, batch_size: int
) -> Program:
    return in_low_precision(program_at(batch_size), kept, slowdown)


def _slowdown(dtype: str) -> Slowdown:
    """The slowdown timed on this machine before, else now: the same plan for the same question."""
    key = f"{dtype}-{machine_key()}"
    known = cache.recall(Slowdown, key)
    if known is None:
        known = time_16_bits(dtype)
        cache.keep(key, known)
    return known


def _counted(kept: int) -> str:
    return "one layer that stays in float32" if kept == 1 else f"{kept} layers that stay in float32"


logger = logging.getLogger("memfit")


@contextmanager
def pulled(model: Any, choice: Choice, samples: Any = None) -> Iterator[tuple[str, ...]]:
    """A model as a choice has it, with what there is to say about that; afterwards it is as before.

    With samples, layers that overflow on them in float16 stay in float32.
    """
    with ExitStack() as levers:
        notes: tuple[str, ...] = ()
        if choice.precision != model.dtype_policy.name:
            precision = apply_precision(model, choice.precision, keep=choice.float32_layers)
            levers.callback(precision.undo)
            if choice.precision == "mixed_float16":
                notes = _what_overflows(precision, samples)
        if model.compiled and bool(model.jit_compile) != choice.jit_compile:
            levers.enter_context(jit_compiled(model, choice.jit_compile))
        if choice.remat is not None:
            levers.enter_context(apply_cuts(model, choice.remat))
        yield notes


@contextmanager
def jit_compiled(model: Any, value: bool) -> Iterator[None]:
    """A compiled model whose step XLA compiles, or does not."""
    before = model.jit_compile
    model.jit_compile = value
    try:
        yield
    finally:
        model.jit_compile = before


def _what_overflows(precision: Precision, samples: Any) -> tuple[str, ...]:
    """Keep layers in float32 that need it, as far as that can be seen on samples; what is to be said."""
    if samples is None:
        return ("Whether layers overflow in float16 was not tried: there are no samples at hand.",)
    try:
        kept = precision.keep_overflowing(samples)
    except MemfitError:
        raise  # the model overflows in float32 too
    except Exception as error:
        logger.debug("Layers were not tried in float16.", exc_info=True)
        return (f"Whether layers overflow in float16 could not be tried: {type(error).__name__}.",)
    return tuple(f"{name} stays in float32: it {why}." for name, why in kept)
