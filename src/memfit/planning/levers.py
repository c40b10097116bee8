"""Levers pulled on a real model, for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memfit.errors import MemfitError
from memfit.records import Choice
from memfit.rematerialise import apply_cuts
from memfit.runs.precisions import Precision, apply_precision

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
