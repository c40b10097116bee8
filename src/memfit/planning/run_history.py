"""The run history of a model: a fingerprint tells it apart, and its runs go into the next plan.

Fingerprints are a few characters, computed without a trace.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.core import cache
from memfit.core.errors import WrongPlan
from memfit.core.records import Measured, MeasuredRuns, Plan, Run
from memfit.core.records.plans import PlanRequest
from memfit.core.units import format_size
from memfit.core.version import __version__
from memfit.levers.rematerialised import remat_of
from memfit.model.training_data import batches_of, is_keras_own, takes_batch_size, training_specs
from memfit.private.keras.layers import comes_from_keras, functional_of, layers_and_self, nodes_in_order
from memfit.private.tensorflow.runtime import uses_onednn

logger = logging.getLogger("memfit")


def fingerprint_of(model: Any) -> str:
    """The fingerprint of a model: kinds of layers, shapes and types of weights, and versions."""
    return _digest(
        [
            *(f"{type(layer).__name__} {layer.dtype_policy.name}" for layer in layers_and_self(model)),
            *(f"{tuple(weight.shape)} {weight.dtype} {weight.trainable}" for weight in model.weights),
            *_shapes_of_calls(model),
            *(
                f"{tuple(tensor.shape)}"
                for tensor in keras.tree.flatten(getattr(model, "inputs", None) or [])
            ),
            *((type(model.optimizer).__name__, _loss_of(model)) if model.compiled else ()),
            tf.__version__,
            keras.__version__,
            __version__,
        ],
        16,
    )


def key_of(structure: str, request: PlanRequest, aim: int) -> str:
    """Under what a plan for a request is kept that aims at so many bytes."""
    return _digest([structure, repr((request.budget_bytes, request.allow, request.float32_layers, aim))], 32)


def structure_of(model: Any, request: PlanRequest) -> str | None:
    """The digest of what plans for any budget depend on: model, step, code, batches, versions and machine.

    None for models made by code alone, which nothing tells apart, and where something cannot be told.
    """
    if functional_of(model) is None or not is_keras_own(model, "train_step"):
        return None
    try:
        parts = [
            fingerprint_of(model),
            repr(model.get_config()),
            repr(_compile_config(model)),
            *_code_of(model),
            repr(training_specs(model, request.data)),
            repr(request.batch_size),
            repr((platform.machine(), os.cpu_count(), uses_onednn())),
        ]
    except Exception as error:  # noqa: BLE001 - whatever a model's own code raises when it is written down
        logger.debug("Nothing is kept for this model: %s", error)
        return None
    return _digest(parts, 32)


def check_plan(model: Any, plan: Plan, arguments: dict[str, Any], budget_bytes: int | None) -> None:
    """Raise unless a plan was made for this model and these versions, and for what `fit` is called with."""
    if not isinstance(plan, Plan):
        raise WrongPlan("no model", expected="a memfit.Plan", received=type(plan).__name__, batch_size=32)
    fingerprint, size = fingerprint_of(model), plan.batch_size
    if plan.fingerprint != fingerprint:
        what = "another model, or with other versions"
        raise WrongPlan(what, expected=fingerprint, received=plan.fingerprint or "none", batch_size=size)
    if plan.chosen.remat and remat_of(model) is not None:
        what, is_cut = "a model that is not cut yet", "one that memfit.remat has cut"
        raise WrongPlan(what, expected="a plain model", received=is_cut, batch_size=size)
    received = arguments.get("batch_size")
    if received is None and not takes_batch_size(arguments["x"]):
        received, _ = batches_of(arguments)
    if received is not None and received != size:
        expected, given = f"batch_size={size}", f"batch_size={received}"
        raise WrongPlan("other batches", expected=expected, received=given, batch_size=received)
    if budget_bytes is not None and plan.chosen.safe_bytes > budget_bytes:
        needed = f"at least {format_size(plan.chosen.safe_bytes)}"
        given = format_size(budget_bytes)
        raise WrongPlan("a larger budget", expected=needed, received=given, batch_size=size)


def _shapes_of_calls(model: Any) -> list[str]:
    """The shapes of tensors between the layers of a Functional model, which strides and padding change."""
    functional = functional_of(model)
    nodes = [] if functional is None else nodes_in_order(functional)
    return [f"{tuple(tensor.shape)}" for node in nodes for tensor in node.outputs]


def _compile_config(model: Any) -> Any:
    """The compile configuration of a model without the learning rate, which training changes."""
    if not model.compiled:
        return None
    config = copy.deepcopy(model.get_compile_config())
    optimizer = config.get("optimizer") if isinstance(config, dict) else None
    if isinstance(optimizer, dict):
        optimizer.get("config", {}).pop("learning_rate", None)
    return config


def _code_of(model: Any) -> list[str]:
    """The source of whatever is not Keras' own; an error where there is none."""
    parts = [*layers_and_self(model), model.optimizer, *keras.tree.flatten(model.loss)]
    kinds = {part if inspect.isroutine(part) else type(part) for part in parts}
    own = [kind for kind in kinds if not comes_from_keras(kind) and kind.__module__ != "builtins"]
    return sorted(inspect.getsource(kind) for kind in own)


def _loss_of(model: Any) -> str:
    losses = keras.tree.flatten(model.loss)
    return " ".join(
        loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__) for loss in losses
    )


def _digest(parts: Iterable[str], length: int) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:length]


_MOST = 16


def remember(structure: str | None, plan: Plan, run: Run) -> None:
    """Keep what a run of a plan came to, for models of this structure; without one, nothing."""
    if structure is None or run.steps == 0:
        return
    known = cache.recall(MeasuredRuns, structure) or MeasuredRuns()
    measured = Measured(
        choice=plan.chosen,
        limit_bytes=run.budget.limit_bytes,
        peak_bytes=run.step_peak_bytes,
        seconds_per_step=run.seconds_per_step,
        ooms=sum(oom.phase in ("gradients", "commit") for oom in run.ooms),
    )
    cache.keep(structure, MeasuredRuns((*known.runs, measured)[-_MOST:]))


def runs_that_matter(structure: str | None, budget_bytes: int) -> tuple[Measured, ...]:
    """Runs that needed more than was foreseen."""
    known = None if structure is None else cache.recall(MeasuredRuns, structure)
    return () if known is None else relevant(known.runs, budget_bytes)


_LOWER = 0.94  # than what ran out
_MOST_MORE = 1.25  # a peak far beyond what was foreseen is something else on the device


def relevant(runs: Iterable[Measured], budget_bytes: int) -> tuple[Measured, ...]:
    """Runs that ran out, or needed more than was foreseen; not where that was enough in this very budget."""
    return tuple(
        run
        for run in runs
        if _ran_out_within(run, budget_bytes) or (_excess(run) > 1 and run.limit_bytes != budget_bytes)
    )


def aim_of(budget_bytes: int, past: Sequence[Measured]) -> int:
    """The bytes that a plan may need: less than what ran out in the budget, less by what was not foreseen."""
    aims = [budget_bytes / max((_excess(run) for run in past), default=1.0)]
    aims += [_LOWER * run.choice.safe_bytes for run in past if _ran_out_within(run, budget_bytes)]
    return int(min(aims))


def _ran_out_within(run: Measured, budget_bytes: int) -> bool:
    """Whether it ran out although it had as much as there is now."""
    return bool(run.ooms) and run.limit_bytes is not None and run.limit_bytes >= budget_bytes


def _excess(run: Measured) -> float:
    """The factor by which a run exceeded its planned bytes, up to what can be its own."""
    if run.peak_bytes is None or run.ooms:
        return 1.0
    return min(_MOST_MORE, max(1.0, run.peak_bytes / run.choice.safe_bytes))
