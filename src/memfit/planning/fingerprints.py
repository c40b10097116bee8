"""What a plan depends on, in a few characters: computed without a trace."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import platform
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import WrongPlan
from memfit.models import internals
from memfit.models.internals import comes_from_keras
from memfit.models.specs import training_specs
from memfit.planning.batches import batches_of
from memfit.planning.wishes import Wish
from memfit.records import Plan
from memfit.runs.computations import is_keras_own
from memfit.runs.hosts import takes_batch_size
from memfit.runs.remats import remat_of
from memfit.units import format_size
from memfit.version import __version__

logger = logging.getLogger("memfit")


def fingerprint_of(model: Any) -> str:
    """What a plan depends on of a model: kinds of layers, shapes and types of weights, and versions."""
    return _digest(
        [
            *(f"{type(layer).__name__} {layer.dtype_policy.name}" for layer in internals.all_layers(model)),
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


def key_of(structure: str, wish: Wish, aim: int) -> str:
    """Under what a plan for a wish is kept that aims at so many bytes."""
    return _digest([structure, repr((wish.budget_bytes, wish.allow, wish.float32_layers, aim))], 32)


def structure_of(model: Any, wish: Wish) -> str | None:
    """What plans for any budget depend on: model, step, code, batches, versions and machine.

    None for models made by code alone, which nothing tells apart, and where something cannot be told.
    """
    if internals.functional_of(model) is None or not is_keras_own(model, "train_step"):
        return None
    try:
        parts = [
            fingerprint_of(model),
            repr(model.get_config()),
            repr(_compile_config(model)),
            *_code_of(model),
            repr(training_specs(model, wish.data)),
            repr(wish.batch_size),
            repr((platform.machine(), os.cpu_count(), os.environ.get("TF_ENABLE_ONEDNN_OPTS"))),
        ]
    except Exception as error:  # noqa: BLE001 - whatever a model's own code raises when it is written down
        logger.debug("Nothing is kept for this model: %s", error)
        return None
    return _digest(parts, 32)


def check_plan(model: Any, plan: Plan, arguments: dict[str, Any], budget_bytes: int | None) -> None:
    """Raise unless a plan was made for this model and these versions, and for what `fit` is called with."""
    if not isinstance(plan, Plan):
        raise WrongPlan("nobody", expected="a memfit.Plan", received=type(plan).__name__, batch_size=32)
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
    """What goes between the layers of a Functional model, which strides and padding change."""
    functional = internals.functional_of(model)
    nodes = [] if functional is None else internals.nodes_in_order(functional)
    return [f"{tuple(tensor.shape)}" for node in nodes for tensor in node.outputs]


def _compile_config(model: Any) -> Any:
    """What a model was compiled with, but for the learning rate, which training changes."""
    if not model.compiled:
        return None
    config = copy.deepcopy(model.get_compile_config())
    optimizer = config.get("optimizer") if isinstance(config, dict) else None
    if isinstance(optimizer, dict):
        optimizer.get("config", {}).pop("learning_rate", None)
    return config


def _code_of(model: Any) -> list[str]:
    """The source of whatever is not Keras' own; an error where there is none."""
    parts = [*internals.all_layers(model), model.optimizer, *keras.tree.flatten(model.loss)]
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
