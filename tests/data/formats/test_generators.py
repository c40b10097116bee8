"""What a Python function yields, run through again for every epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

LENGTH = 103


def _run_through() -> dict[str, Any]:
    import gc
    import weakref

    import numpy as np
    import tensorflow as tf

    from memfit.data import from_generator

    begun = Counter[str]()

    def samples() -> Any:
        begun["passes"] += 1
        for number in range(LENGTH):
            yield np.full((4, 4), number, np.float32), number % 3

    def opened(**options: Any) -> Any:
        return from_generator(samples, length=LENGTH, batch_size=10, ram="48MiB", **options)

    def taken(batches: Any) -> list[int]:
        return [int(x) for batch, _ in batches for x in batch[:, 0, 0]]

    dataset = opened()
    epochs = [taken(dataset) for _ in range(3)]
    passes = begun["passes"]
    later = opened(start=LENGTH + 30)
    rest = [taken(later) for _ in range(2)]

    iterator = iter(opened())
    for _ in range(4):
        next(iterator)
    place = tf.train.Checkpoint(iterator=iterator).write(f"{tf.io.gfile.join(_scratch(), 'place')}")
    again = iter(opened())
    tf.train.Checkpoint(iterator=again).read(place)

    two = tf.data.Dataset.zip((opened(shuffle=False), opened(shuffle=False)))
    held = np.zeros(10)
    kept = weakref.ref(held)
    leaky = from_generator(lambda held=held: iter([held] * 3), ram="48MiB")
    list(leaky)
    del held, leaky
    gc.collect()
    return {
        "spec": str(dataset.element_spec),
        "length": len(dataset),
        "whole": [sorted(epoch) == list(range(LENGTH)) for epoch in epochs],
        "differ": epochs[0] != epochs[1] != epochs[2],
        "as they come": taken(opened(shuffle=False)) == list(range(LENGTH)),
        "passes": passes,
        "rest": [rest[0] == epochs[1][30:], rest[1] == epochs[2]],
        "restored": taken(again) == epochs[0][40:],
        "two": all(bool(tf.reduce_all(one[0] == other[0])) for one, other in two),
        "unknown length": int(from_generator(samples, ram="48MiB").cardinality()),
        "single": len(list(from_generator(samples, ram="48MiB", batch_size=None))),
        "full": str(
            from_generator(
                lambda: iter([{"a": 1, "b": "x"}] * 5), batch_size=2, drop_remainder=True, ram="48MiB"
            )
            .element_spec["a"]
            .shape
        ),
        "released": kept() is None,
    }


def _scratch() -> str:
    import tempfile

    return tempfile.mkdtemp()


def test_epochs_are_passes_that_any_place_can_be_reached_in() -> None:
    seen = run_limited(_run_through, None)
    shape = "TensorSpec(shape=(None, 4, 4), dtype=tf.float32, name=None)"
    assert seen.pop("spec") == f"({shape}, TensorSpec(shape=(None,), dtype=tf.int32, name=None))"
    assert seen == {
        "length": 11,
        "whole": [True, True, True],
        "differ": True,
        "as they come": True,
        # One to see what elements are like, and one for each epoch.
        "passes": 4,
        "rest": [True, True],
        "restored": True,
        "two": True,
        "unknown length": -2,
        "single": LENGTH,
        "full": "(2,)",
        "released": True,
    }


def _go_wrong() -> dict[str, str]:
    import numpy as np

    from memfit.data import from_generator

    def error(function: Any, **options: Any) -> str:
        try:
            list(from_generator(function, shuffle=False, batch_size=4, ram="48MiB", **options))
        except Exception as error:  # noqa: BLE001 - TensorFlow wraps ours
            return str(error)
        return "no error"

    def fails() -> Any:
        yield 1
        yield 2
        yield 3
        yield 4
        raise KeyError("the fifth")

    return {
        "list": error([1, 2]),
        "number": error(lambda: 3),
        "nothing": error(list),
        "shape": error(lambda: iter([np.zeros(3)] * 5 + [np.zeros(4)])),
        "structure": error(lambda: iter([(1, 2)] * 5 + [1])),
        "raises": error(fails),
    }


def test_what_is_wrong_with_a_generator_is_said() -> None:
    seen = run_limited(_go_wrong, None)
    for name, words in {
        "list": "cannot be run through more than once",
        "number": "cannot be run through more than once",
        "nothing": "there is nothing to stream",
        "shape": "element 4 of <lambda> is not like the first ones",
        "structure": "element 5 of <lambda> is built otherwise",
        "raises": "the fifth",
    }.items():
        assert words in seen[name], seen[name]
