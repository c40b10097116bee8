"""Every private name that resuming relies on: what breaks if it goes."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _use_them() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.supervision import internals

    seen: dict[str, Any] = {}
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    made: list[Any] = []

    def make(kind: Any, **options: Any) -> Any:
        made.append(sorted(options))
        return kind(**options)

    with internals.first_iterator_from(make):
        model.fit(x, y, batch_size=2, validation_data=(x, y), verbose=0)
    seen["made"] = made
    kind = internals.epoch_iterators()
    iterator = kind(x=x, y=y, batch_size=2, distribute_strategy=model.distribute_strategy)
    iterator.reset()
    seen["steps"] = [(begin, end) for begin, end, _ in iterator]
    hooks = ("_enumerate_iterator", "_get_iterator", "catch_stop_iteration")
    seen["hooks"] = [hasattr(kind, name) for name in hooks]

    with internals.metrics_where_no_step_ran(model):
        seen["metrics"] = list(model._get_metrics_result_or_logs({}))
        seen["logs"] = model._get_metrics_result_or_logs({"mine": 1})
    seen["seed"] = tuple(internals.global_seed_state().shape)

    seen["no seed"] = internals.has_global_seed()
    tf.random.set_seed(5)
    seen["a seed"] = internals.has_global_seed()
    state = internals.operation_seeds().getstate()
    first = tf.compat.v1.get_seed(None)
    internals.operation_seeds().setstate(state)
    seen["drawn again"] = tf.compat.v1.get_seed(None) == first
    return seen


def test_each_does_what_memfit_needs() -> None:
    seen = run_limited(_use_them, None)
    options = seen.pop("made")
    # Data is taken again by standing in for the iterator of `fit`, and not for that of its evaluation.
    assert len(options) == 1
    assert {"x", "y", "batch_size", "steps_per_epoch", "shuffle", "class_weight"} <= set(options[0])
    assert seen == {
        "steps": [[0, 0], [1, 1]],
        "hooks": [True, True, True],
        # An epoch that was killed after its last batch still has its losses.
        "metrics": ["loss"],
        "logs": {"mine": 1},
        # What draws without a seed of its own goes on where it was.
        "seed": [2],
        "no seed": False,
        "a seed": True,
        "drawn again": True,
    }
