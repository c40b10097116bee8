"""Facts behind `memfit.private.keras.global_state`: what breaks if a private name of Keras goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from once import computed_once

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from memfit.private.keras.global_state import (
        StagedScope,
        borrowed_global_seed,
        global_seed_outside_scopes,
        global_seed_state,
        global_seed_states,
        outside_scopes,
        scope_in_force,
    )
    from memfit.private.tensorflow.variables import backing_variable

    seen: dict[str, Any] = {}
    with keras.StatelessScope() as plain:
        seen["scope"] = scope_in_force() is plain

    model = keras.Sequential([
        keras.Input((2,)), keras.layers.Dense(3, kernel_regularizer="l2"), keras.layers.BatchNormalization(),
    ])  # fmt: skip
    kernel, mean = model.layers[0].kernel, model.layers[1].moving_mean
    with StagedScope([(mean, tf.fill((3,), 7.0))]) as scope:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(kernel * 2.0) + sum(model.losses)
        gradient = tape.gradient(loss, kernel)
        mean.assign(mean + 1.0)
        seen["inside"] = float(scope.get_current_value(mean)[0])
    seen["gradient"] = gradient is not None
    seen["outside"] = float(mean[0])
    seen["written"] = [variable is mean for variable in scope.written.values()]

    with StagedScope([]), outside_scopes():
        seen["outside scopes"] = isinstance(backing_variable(keras.Variable(1.0)), tf.Variable)

    keras.backend.clear_session()
    with borrowed_global_seed():
        keras.random.uniform((1,))
    seen["borrowed"] = len(global_seed_states())
    with keras.StatelessScope(), global_seed_outside_scopes():
        keras.random.uniform((1,))
    seen["seed for good"] = keras.random.uniform((1,)).shape == (1,)
    seen["seed"] = tuple(global_seed_state().shape)
    seen["states"] = [state is global_seed_state() for state in global_seed_states()]
    return seen


@pytest.fixture(scope="module")
def seen() -> Any:
    return computed_once("keras-global-state", lambda: run_limited(_use_them, "512MiB"))


def test_the_open_scope_is_known(seen: Any) -> None:
    """`stateless_scope`: without it a segment inside a scope would read the real variables."""
    assert seen["scope"]


def test_assignments_stay_in_the_shadow_state(seen: Any) -> None:
    """`state_mapping`, `add_update`: without them BatchNorm and seeds would move in phase one."""
    assert seen["inside"] == 8.0
    assert seen["outside"] != 8.0, "an assignment left the scope"
    assert seen["written"] == [True], "without add_update it is unknown what moved"


def test_weights_are_read_as_they_are(seen: Any) -> None:
    """`get_current_value`: without a handle for variables that have no shadow the tape sees no weights."""
    assert seen["gradient"]


def test_variables_can_be_created_inside_a_scope(seen: Any) -> None:
    """`stateless_scope`: if it cannot be put aside, slots made while tracing are lost."""
    assert seen["outside scopes"]


def test_draws_without_a_seed_have_a_generator(seen: Any) -> None:
    """`global_seed_generator`: without it a generator is created inside a scope and lost with it."""
    assert seen["borrowed"] == 0, "a trace that is thrown away left its generator behind"
    assert seen["seed for good"]


def test_the_global_seed_has_a_state(seen: Any) -> None:
    """`seed_generator.global_seed_generator`: without it unseeded draws differ after resuming."""
    assert seen["seed"] == [2]
    assert seen["states"] == [True]
