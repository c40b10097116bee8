"""Leaks are named by the line that makes them, and programs that do not leak are left in peace."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

# Here and not read from the programs, since importing those imports TensorFlow.
LEAKED = {
    "models": "models",
    "own_steps": "models",
    "scalars": "retracing",
    "shapes": "retracing",
    "generators": "python_functions",
    "py_functions": "python_functions",
    "numpy_functions": "python_functions",
    "losses": "tensors",
    "attributes": "tensors",
    "passed_on": "tensors",
    "tapes": "tapes",
    "slices": "arrays",
    "constants": "arrays",
}
CLEAN = ("fits", "floats", "predictions", "validated", "one_generator", "two_models", "released")


def _watch_all(names: list[str]) -> dict[str, Any]:
    import logging

    import memfit
    from watching import leaking

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    found = {}
    for name in names:
        said.clear()
        with memfit.watch() as watch:
            getattr(leaking, name)(watch)
        found[name] = {
            "leaks": [leak.to_dict() for leak in watch.leaks],
            "line": leaking.line_of(name) if name in LEAKED else None,
            "last": watch.timeline[-1].to_dict(),
            "first": watch.timeline[0].to_dict(),
            "said": list(said),
        }
    return found


@pytest.fixture(scope="module")
def leaking() -> Any:
    return run_limited(_watch_all, "1GiB", names=list(LEAKED))


@pytest.fixture(scope="module")
def clean() -> Any:
    return run_limited(_watch_all, None, names=list(CLEAN))


@pytest.mark.parametrize("name", LEAKED)
def test_a_leak_is_named_by_its_line(leaking: Any, name: str) -> None:
    (leak,) = leaking[name]["leaks"]
    assert leak["source"].endswith(leaking[name]["line"])
    assert leak["leaked"] == LEAKED[name]
    assert leak["count"] >= 1
    assert leak["paste"]
    assert leak["evidence"]


@pytest.mark.parametrize("name", LEAKED)
def test_a_leak_is_logged_once(leaking: Any, name: str) -> None:
    (message,) = leaking[name]["said"]
    assert leaking[name]["line"] in message
    assert "Try: " in message


def test_what_leaks_is_counted(leaking: Any) -> None:
    (models,) = leaking["models"]["leaks"]
    assert models["paste"] == "memfit.release(model)"
    assert leaking["models"]["last"]["graphs"] > leaking["models"]["first"]["graphs"]
    assert leaking["models"]["last"]["gradients"] > leaking["models"]["first"]["gradients"]
    (generators,) = leaking["generators"]["leaks"]
    assert (generators["count"], generators["bytes_each"]) == (5, 256 * 1024 * 4)
    assert leaking["generators"]["last"]["closures"] >= leaking["generators"]["first"]["closures"] + 15
    (scalars,) = leaking["scalars"]["leaks"]
    assert scalars["count"] == leaking["scalars"]["last"]["traces"] == 8
    assert "factor" in scalars["evidence"][0]
    (slices,) = leaking["slices"]["leaks"]
    assert slices["bytes_each"] >= 20 << 20


def test_the_timeline_has_steps_and_bytes(leaking: Any) -> None:
    first, last = leaking["losses"]["first"], leaking["losses"]["last"]
    assert (first["step"], last["step"]) == (0, 64)
    assert last["seconds"] > first["seconds"]
    assert last["process_bytes"] > last["device_bytes"] > 0
    assert last["tensors"] is not None


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_program_is_left_in_peace(clean: Any, name: str) -> None:
    assert clean[name]["leaks"] == []
    assert clean[name]["said"] == []


def test_the_steps_of_fit_are_counted(clean: Any) -> None:
    assert clean["fits"]["last"]["step"] == 500
    assert clean["fits"]["last"]["device_bytes"] is None  # no limit, so the allocator counts nothing


def _other_ways() -> dict[str, Any]:
    import contextlib
    import time

    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.framework import constant_op, func_graph, tensor_util
    from tensorflow.python.ops import script_ops

    import memfit
    from watching import leaking

    def patched() -> list[Any]:
        return [
            vars(keras.Model)["__new__"],
            func_graph.FuncGraph.__init__,
            vars(script_ops._py_funcs).get("insert"),
            constant_op.convert_to_eager_tensor,
            tensor_util.make_tensor_proto,
        ]

    seen: dict[str, Any] = {}
    before = patched()

    kept = []
    with memfit.watch() as watch:  # nobody marks a step, so that time is what counts
        while len(watch.timeline) < 12:
            kept.append(tf.constant(1.0))
            time.sleep(0.001)
        seen["inside"] = [one is two for one, two in zip(patched(), before, strict=True)]
    seen["unmarked"] = [(leak.leaked, leak.evidence[0].split()[0]) for leak in watch.leaks]

    outer, inner = memfit.watch(), memfit.watch()
    with outer:
        with inner:
            leaking.scalars(inner)
        leaking.shapes(outer)
    seen["nested"] = [[leak.leaked for leak in one.leaks] for one in (inner, outer)]

    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyError

    failed = memfit.watch()
    with contextlib.suppress(KeyError):
        leaking.small_model().fit(leaking.X, leaking.Y, verbose=0, callbacks=[failed, Fails()])
    while failed.is_on:  # noticed by the thread, at its next look
        time.sleep(0.01)
    seen["failed"] = failed.timeline[-1].step

    model = leaking.small_model()
    again = memfit.watch()
    for _ in range(2):
        model.fit(leaking.X, leaking.Y, verbose=0, callbacks=[again])
    model.evaluate(leaking.X, leaking.Y, verbose=0, callbacks=[again])
    model.predict(leaking.X, verbose=0, callbacks=[again])
    seen["again"] = again.timeline[-1].step
    seen["back"] = [one is two for one, two in zip(patched(), before, strict=True)]

    with memfit.watch() as watch:
        for _ in range(40):  # a large batch each step, which goes with the next one
            batch = tf.constant(np.ones((17, 1 << 20), "uint8"))
            watch.step()
        del batch
    seen["batches"] = [leak.leaked for leak in watch.leaks]
    return seen


def test_other_ways_to_watch() -> None:
    seen = run_limited(_other_ways, None)
    assert seen["inside"] == [False] * 5
    assert seen["unmarked"] == [["tensors", "kept"]]
    assert seen["nested"] == [["retracing"], ["retracing", "retracing"]]
    assert seen["failed"] == 1
    assert seen["again"] == 4
    assert seen["back"] == [True] * 5
    assert seen["batches"] == []
