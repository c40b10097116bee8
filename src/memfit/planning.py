"""Model + budget -> Plan: one trace, a search over levers on it, and the winner traced for real."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit import caches
from memfit.errors import CannotEstimate, DoesNotFit, InvalidLever, WrongPlan
from memfit.estimates.calibrations import what_is_unknown
from memfit.estimates.limits import fits
from memfit.estimates.peaks import estimate
from memfit.foresight import Foresight, foresee
from memfit.garbage import no_collection
from memfit.models import internals
from memfit.models.specs import batch_specs, training_specs
from memfit.plans.micro_batches import in_micro_batches
from memfit.plans.search import Candidate, Found, Search, Weighed
from memfit.plans.sizes import Sizes
from memfit.programs.layers import layer_graph
from memfit.programs.traces import specs_at
from memfit.programs.training import check_model
from memfit.records import Choice, LayerGraph, Lever, Plan, Program
from memfit.rematerialise import apply_cuts, cuts_of
from memfit.runs.computations import ModelStep
from memfit.runs.hosts import as_arrays, takes_batch_size
from memfit.runs.remats import remat_of
from memfit.units import format_size
from memfit.version import __version__

logger = logging.getLogger("memfit")

LEVERS: tuple[Lever, ...] = ("micro_batch", "remat")

_TRIES = 6
_LOWER = 0.94  # how much lower each further try aims
_BATCH_SIZE = 32  # that of Keras
_SMALLER = 4  # the second batch size that is read is so many times smaller


@dataclass(frozen=True)
class Wish:
    """What a plan is asked for."""

    batch_size: int
    budget_bytes: int
    allow: tuple[Lever, ...] = LEVERS
    data: Any = None


def check_levers(allow: tuple[str, ...]) -> tuple[Lever, ...]:
    """Raise unless all of them can be pulled."""
    for name in allow:
        if name not in LEVERS:
            raise InvalidLever(name, known=LEVERS)
    return tuple(lever for lever in LEVERS if lever in allow)


def fingerprint_of(model: Any) -> str:
    """What a plan depends on of a model: kinds of layers, shapes and types of weights, and versions."""
    parts = [
        *(type(layer).__name__ for layer in internals.all_layers(model)),
        *(f"{tuple(variable.shape)} {variable.dtype}" for variable in model.weights),
        *(f"{tuple(tensor.shape)}" for tensor in keras.tree.flatten(getattr(model, "inputs", None) or [])),
        *((type(model.optimizer).__name__, _loss_of(model)) if model.compiled else ()),
        tf.__version__,
        keras.__version__,
        __version__,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _loss_of(model: Any) -> str:
    losses = keras.tree.flatten(model.loss)
    return " ".join(
        loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__) for loss in losses
    )


def check_plan(model: Any, plan: Plan, arguments: dict[str, Any], budget_bytes: int | None) -> None:
    """Raise unless a plan was made for this model and these versions, and for what `fit` is called with."""
    if not isinstance(plan, Plan):
        raise WrongPlan("nobody", expected="a memfit.Plan", received=type(plan).__name__, batch_size=32)
    fingerprint, size = fingerprint_of(model), plan.batch_size
    if plan.fingerprint != fingerprint:
        what = "another model, or with other versions"
        raise WrongPlan(what, expected=fingerprint, received=plan.fingerprint or "none", batch_size=size)
    received = arguments.get("batch_size")
    if received is None and not takes_batch_size(arguments["x"]):
        received, _ = _batches(arguments)
    if received is not None and received != size:
        expected, given = f"batch_size={size}", f"batch_size={received}"
        raise WrongPlan("other batches", expected=expected, received=given, batch_size=received)
    if budget_bytes is not None and plan.chosen.safe_bytes > budget_bytes:
        needed = f"at least {format_size(plan.chosen.safe_bytes)}"
        given = format_size(budget_bytes)
        raise WrongPlan("a larger budget", expected=needed, received=given, batch_size=size)


def plan_for_fit(model: Any, arguments: dict[str, Any], budget_bytes: int) -> tuple[Plan | None, str]:
    """A plan for a call of `fit`, from the cache if there is one; None and why where there is none."""
    size, data = _batches(arguments)
    if size is None:
        return None, "the size of its batches is not known beforehand"
    if not getattr(model, "compiled", False):
        return None, "the model is not compiled"
    if not model.built:
        return None, "the model has not been built"
    wish = Wish(size, budget_bytes, data=data)
    key = _key(model, wish)
    plan = None if key is None else caches.recall(Plan, key)
    if plan is not None:
        return plan, ""
    logger.info("Planning for batches of %d in %s.", size, format_size(budget_bytes))
    try:
        plan = make_plan(model, wish)
    except (CannotEstimate, DoesNotFit) as error:
        return None, str(error).splitlines()[0].removesuffix(".")
    if key is not None:
        caches.keep(key, plan)
    return plan, ""


def _batches(arguments: dict[str, Any]) -> tuple[int | None, Any]:
    """The size of the batches that `fit` is going to take, and specs of them."""
    x = arguments["x"]
    if takes_batch_size(x):
        parts = (x, arguments.get("y"), arguments.get("sample_weight"))
        kept = tuple(as_arrays(part) for part in parts if part is not None)
        count, size = len(keras.tree.flatten(kept)[0]), arguments.get("batch_size")
        size = _BATCH_SIZE if size is None else size
        known = isinstance(size, int) and size > 0  # else Keras says what is wrong
        return min(size, count) if known else None, keras.tree.map_structure(lambda array: array[:1], kept)
    if isinstance(x, tf.data.Dataset):
        sizes = {spec.shape[0] for spec in keras.tree.flatten(x.element_spec) if spec.shape.rank}
        return (sizes.pop(), x) if len(sizes) == 1 else (None, None)
    return None, None


def _key(model: Any, wish: Wish) -> str | None:
    """What a plan depends on, in a few characters and without a trace; None for models made by code alone."""
    if internals.functional_of(model) is None or type(model).train_step is not keras.Model.train_step:
        return None
    parts = [
        fingerprint_of(model),
        model.to_json(),
        repr(model.get_compile_config()),
        repr(batch_specs(wish.data)),
        repr((wish.batch_size, wish.budget_bytes, wish.allow)),
        repr((platform.machine(), os.cpu_count(), os.environ.get("TF_ENABLE_ONEDNN_OPTS"))),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def make_plan(model: Any, wish: Wish, tell: Callable[[str], None] = lambda what: None) -> Plan:
    """The fastest way to train a model in a budget; nothing is run, and the model stays as it is.

    What the search takes for a fit may need a little more when it is traced, or leave too little room for the
    gaps in a pool: then it aims lower.
    """
    began = time.perf_counter()
    check_model(model)
    with no_collection():
        made = _searching(model, wish, tell)
        plan, aim = None, wish.budget_bytes
        for _ in range(_TRIES):
            found = made.search.within(aim)
            if not found.fitting:
                break
            choices = [_choice(model, candidate, made.layers) for candidate in found.fitting]
            tell("Tracing the plan for real")
            chosen, has_room = _checked(model, wish, choices[0], made.foresight)
            if chosen.safe_bytes <= wish.budget_bytes:
                plan = Plan(
                    budget_bytes=wish.budget_bytes,
                    batch_size=wish.batch_size,
                    fits_as_is=chosen.accumulation_steps == 1 and chosen.remat is None,
                    chosen=chosen,
                    alternatives=tuple(choices[1:]),
                    ladder=tuple(one for one in choices[1:] if one.safe_bytes < chosen.safe_bytes),
                    left_out=made.left_out,
                    fingerprint=fingerprint_of(model),
                    seconds=time.perf_counter() - began,
                )
                if has_room:
                    return plan
            aim = min(int(_LOWER * aim), choices[0].safe_bytes - 1)
    if plan is None:
        raise _nothing_fits(wish, made.search.within(0), made.left_out)
    note = "Gaps in the pool leave little room: a step may run out and be split further."
    return dataclasses.replace(
        plan, chosen=dataclasses.replace(plan.chosen, notes=(*plan.chosen.notes, note))
    )


@dataclass(frozen=True)
class _Searching:
    """A search, and what it goes by."""

    search: Search
    foresight: Foresight
    layers: LayerGraph | None
    left_out: tuple[str, ...]


def _searching(model: Any, wish: Wish, tell: Callable[[str], None]) -> _Searching:
    tell("Tracing a step")
    foresight = foresee(model, wish.data)
    whole = foresight.at(wish.batch_size)
    sizes = Sizes(foresight.at(max(1, wish.batch_size // _SMALLER)), whole)
    why_not = {
        "micro_batch": "XLA compiles the step" if whole.method == "xla" else _why_not_split(model),
        "remat": "XLA compiles the step" if whole.method == "xla" else _why_not_cut(model),
    }
    usable = [lever for lever in wish.allow if why_not[lever] is None]
    tell("Looking for cuts")
    layers = layer_graph(model, _inputs(model, wish)) if "remat" in usable else None
    tell("Weighing ways to train")
    search = Search(
        sizes.at if sizes.are_alike else foresight.at,
        wish.batch_size,
        _weigh,
        layers=layers,
        may_split="micro_batch" in usable,
    )
    unused = (f"{lever}, since {why_not[lever]}" for lever in wish.allow if lever not in usable)
    left_out = (*whole.left_out, *what_is_unknown(whole), *unused)
    return _Searching(search, foresight, layers, left_out)


def _why_not_split(model: Any) -> str | None:
    return ModelStep(model, "train_step").why_not_split() if model.compiled else None


def _why_not_cut(model: Any) -> str | None:
    if remat_of(model) is not None:
        return "the model is rematerialised already"
    if internals.functional_of(model) is None:
        return "the model is not Functional or Sequential; memfit.remat(model) may cut its layers"
    return None


def _inputs(model: Any, wish: Wish) -> list[Any]:
    specs = specs_at(training_specs(model, wish.data), wish.batch_size)
    flat: list[Any] = keras.tree.flatten(specs[0])
    return flat


def _weigh(program: Program) -> Weighed:
    found = estimate(program, processes=1)
    return Weighed(found.peak_bytes, found.safe_bytes)


def _checked(model: Any, wish: Wish, choice: Choice, plain: Foresight) -> tuple[Choice, bool]:
    """A choice as it really is, the model cut and traced anew; and whether its pool has room for sure."""
    if choice.remat is None:
        program = plain.at(choice.micro_batch_size)
    else:
        with apply_cuts(model, choice.remat):
            program = foresee(model, wish.data).at(choice.micro_batch_size)
    if choice.micro_batch_size < wish.batch_size:
        program = in_micro_batches(program, wish.batch_size)
    found = estimate(program)
    checked = dataclasses.replace(choice, peak_bytes=found.peak_bytes, safe_bytes=found.safe_bytes)
    return checked, fits(program, found, wish.budget_bytes) == "for sure"


def _choice(model: Any, candidate: Candidate, layers: LayerGraph | None) -> Choice:
    cuts = () if layers is None else cuts_of(layers, candidate.spans)
    return Choice(
        micro_batch_size=candidate.micro_batch_size,
        accumulation_steps=candidate.accumulation_steps,
        remat=cuts or None,
        precision=model.dtype_policy.name,
        jit_compile=bool(model.compiled and model.jit_compile),
        peak_bytes=candidate.weighed.peak_bytes,
        safe_bytes=candidate.weighed.safe_bytes,
        relative_time=round(candidate.relative_time, 3),
        exact=candidate.exact,
        notes=candidate.notes,
    )


def _nothing_fits(wish: Wish, found: Found, left_out: tuple[str, ...]) -> DoesNotFit:
    smallest, as_is = found.smallest, found.plain.weighed.safe_bytes
    enough = -(-smallest.weighed.safe_bytes >> 20)
    how = f"micro-batches of {smallest.micro_batch_size}, {len(smallest.spans)} segments computed again"
    return DoesNotFit(
        f"nothing allowed fits a batch of {wish.batch_size} in {format_size(wish.budget_bytes)}.",
        f"As it is it needs up to {as_is:,} bytes ({format_size(as_is)}).",
        f"The smallest found needs up to {smallest.weighed.safe_bytes:,} bytes ({how}).",
        *(f"Left out: {note}." for note in left_out),
        suggestion=f'memfit.plan(model, {wish.batch_size}, budget="{enough}MiB")',
        limit_bytes=wish.budget_bytes,
    )
