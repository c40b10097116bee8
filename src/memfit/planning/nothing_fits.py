"""The advice where nothing fits: each piece with its figure, as far as it can be checked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from memfit.core.errors import NothingFits
from memfit.core.records import Advice, Lever, Shortfall
from memfit.core.records.plans import LEVERS, in_words, plan_arguments
from memfit.core.units import format_size
from memfit.planning.planner import Checked, Planner, optimizer_state, weigh
from memfit.planning.search.replicas import on_replicas
from memfit.planning.variants import variants_of
from memfit.private.tensorflow.graph_defs import maker_of_kernels

_MIB = 1 << 20
_MORE = 1.04  # how much larger each further budget is
_TRIES = 12
_DEVICES = (2, 4, 8)
_WITHOUT_COMPILING: tuple[Lever, ...] = tuple(lever for lever in LEVERS if lever != "xla")


def nothing_fits(planner: Planner) -> NothingFits:
    """The error that says so, with the record of it."""
    request = planner.request
    found = planner.search.within(0)
    plain = planner.checked(planner.choice(found.plain))
    # What should need least may turn out to need more than the plain step, or than a single sample.
    small = [planner.choice(found.smallest), *itertools.islice(planner.small_micro_batches(), 1)]
    smallest = min(*map(planner.checked, small), plain, key=_needed)
    enough = _budget_for(planner, smallest)
    other_kernels = tuple(_other_kernels(planner))
    advice = (
        _larger_budget(planner, smallest, enough),
        *_other_levers(planner, found.smallest.weighed.safe_bytes),
        *other_kernels,
        *_smaller_layer(planner, smallest),
        *_other_optimizer(planner, smallest),
        *_more_devices(planner),
    )
    shortfall = Shortfall(
        budget_bytes=request.budget_bytes,
        batch_size=request.batch_size,
        as_is_bytes=_needed(plain),
        smallest=smallest.choice,
        advice=advice,
        left_out=planner.steps.left_out,
    )
    said = plan_arguments(enough, request.allow, request.float32_layers)
    as_is, least, how = shortfall.as_is_bytes, smallest.choice.safe_bytes, in_words(smallest.choice)
    return NothingFits(
        f"nothing allowed fits a batch of {request.batch_size} in {format_size(request.budget_bytes)}.",
        f"As it is it needs up to {as_is:,} bytes ({format_size(as_is)}).",
        f"The smallest found needs up to {least:,} bytes ({format_size(least)}): {how}.",
        *_held(planner),
        "What would help:",
        *(f"- {one.what}" for one in advice),
        *(f"Left out: {note}." for note in shortfall.left_out),
        suggestion=f"memfit.plan(model, {request.batch_size}, {said})",
        shortfall=shortfall,
        onednn=maker_of_kernels() != "oneDNN" if other_kernels else None,
    )


def _held(planner: Planner) -> Iterator[str]:
    """The sentence with the bytes of weights and optimizer state, where these alone exceed the budget."""
    held = sum(variable.bytes for variable in planner.steps.whole.variables)
    if held > planner.request.budget_bytes:
        yield f"Weights and what the optimizer keeps alone take {held:,} bytes ({format_size(held)})."


def _needed(checked: Checked) -> int:
    return checked.choice.safe_bytes


def _budget_for(planner: Planner, smallest: Checked) -> int:
    """The least budget, in whole MiB, that the smallest runs in for sure and that a plan is made for."""
    budget = _whole_mib(max(_needed(smallest), planner.request.budget_bytes + 1))
    for _ in range(_TRIES):
        if smallest.has_room_in(budget) and planner.within(budget) is not None:
            break
        budget = _whole_mib(_MORE * budget)
    return budget


def _whole_mib(size: float) -> int:
    return -int(-size // _MIB) * _MIB


def _larger_budget(planner: Planner, smallest: Checked, enough: int) -> Advice:
    more = format_size(enough - planner.request.budget_bytes)
    how = in_words(smallest.choice)
    return Advice(f"a budget of {format_size(enough)}, {more} more: {how}", enough, enough=True)


def _other_levers(planner: Planner, without: int) -> Iterator[Advice]:
    """Levers that are not allowed, one at a time, then all of them: what helps against so many bytes."""
    request = planner.request
    missing = [lever for lever in _WITHOUT_COMPILING if lever not in request.allow]
    tried = [(lever,) for lever in missing] + ([tuple(missing)] if len(missing) > 1 else [])
    for extra in tried:
        allow = tuple(lever for lever in LEVERS if lever in (*request.allow, *extra))
        wider = dataclasses.replace(request, allow=allow)
        steps = variants_of(planner.model, wider, planner.tell, known=planner.steps)
        other = Planner(planner.model, wider, steps, planner.tell)
        plan, named = other.within(request.budget_bytes), " and ".join(extra)
        if plan is not None:
            needed = plan.chosen.safe_bytes
            how = f"needs up to {format_size(needed)}, {in_words(plan.chosen)}"
            yield Advice(f"allow {named}: {how}", needed, enough=True)
            return
        least = other.search.within(0).smallest.weighed.safe_bytes
        if least < without:
            how = f"needs up to {format_size(least)}, which is not enough by itself"
            yield Advice(f"allow {named}: {how}", least, enough=False)


def _other_kernels(planner: Planner) -> Iterator[Advice]:
    """Training without oneDNN instead of with it, or the other way round, where that fits."""
    maker, request = maker_of_kernels(), planner.request
    if maker == "GPU" or planner.steps.whole.method == "xla":
        return
    onednn = maker != "oneDNN"
    steps = variants_of(planner.model, request, planner.tell, known=planner.steps.with_onednn(onednn))
    plan = Planner(planner.model, request, steps, planner.tell).within(request.budget_bytes)
    if plan is not None:
        needed, how = plan.chosen.safe_bytes, "with" if onednn else "without"
        line = f'memfit.limit("{request.budget_bytes >> 20}MiB", onednn={onednn})'
        what = f"{how} oneDNN it needs up to {format_size(needed)}, {in_words(plan.chosen)}"
        yield Advice(f"{line} before TensorFlow is imported: {what}", needed, enough=True)


def _smaller_layer(planner: Planner, smallest: Checked) -> Iterator[Advice]:
    """The layer that holds most at the peak."""
    named = [layer for layer in smallest.found.layers if layer.name]
    if not named:
        return
    layer = named[0]
    needed = smallest.choice.safe_bytes - layer.bytes // 2
    holds = f"which holds {format_size(layer.bytes)} at the peak"
    half = f"half of that leaves about {format_size(needed)}"
    what = f"smaller samples, or fewer features into or out of {layer.name}, {holds}: {half}"
    yield Advice(what, needed, enough=needed <= planner.request.budget_bytes)


def _other_optimizer(planner: Planner, smallest: Checked) -> Iterator[Advice]:
    """The advice on another optimizer, where its state is notable; the optimizer is never changed."""
    state = optimizer_state(planner.model, planner.steps.whole)
    needed = smallest.choice.safe_bytes - state.bytes
    if state.is_notable(smallest.choice.safe_bytes):
        keeps = f"{state.name} keeps {format_size(state.bytes)}, {state.bytes_per_weight:g} bytes a weight"
        what = (
            f"an optimizer that keeps nothing, such as plain SGD: {keeps}; about {format_size(needed)} then"
        )
        yield Advice(what, needed, enough=needed <= planner.request.budget_bytes)


def _more_devices(planner: Planner) -> Iterator[Advice]:
    """The advice with the number of devices that would have to share a batch, if few enough are needed."""
    request, base = planner.request, planner.steps.bases[0]
    for count in _DEVICES:
        share = -(-request.batch_size // count)
        if base.jit_compile or share == 1:
            return
        needed = weigh(on_replicas(base.program_at(share))).safe_bytes
        if needed <= request.budget_bytes:
            what = f"{count} such devices with tf.distribute, {share} samples on each"
            yield Advice(f"{what}: about {format_size(needed)} on each", needed, enough=True)
            return
