"""What a checkpoint holds, kept and put back: where a tf.data pipeline is, and random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _keep_and_put_back() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.running.checkpoints.training_state import PipelineStates, has_state, put_back_pipeline

    def shuffled() -> Any:
        return tf.data.Dataset.range(100).shuffle(50, seed=3).batch(10).prefetch(2)

    def taken(iterator: Any) -> list[Any]:
        return [batch.numpy().tolist() for batch in iterator]

    whole = shuffled()
    epochs = [taken(whole) for _ in range(3)]
    dataset = shuffled()
    taken(dataset)
    second = iter(dataset)
    begun = [next(second).numpy().tolist() for _ in range(4)]
    middle = PipelineStates().take(second)
    taken(second)
    end = PipelineStates().take(second)

    again, ended = shuffled(), shuffled()
    iterator = iter(again)
    put_back_pipeline(iterator, middle)
    put_back_pipeline(iter(ended), end)
    random = tf.data.Dataset.range(9).map(lambda x: tf.random.uniform(()))
    python = tf.data.Dataset.from_generator(lambda: iter(range(9)), output_types=tf.int64)
    # Noise, since TensorFlow compresses what it writes.
    noise = np.random.default_rng(0).integers(0, 256, (80 << 20,), np.uint8)
    large = tf.data.Dataset.from_tensors(noise).repeat(3).shuffle(3)
    without = []
    for dataset in (random, python, large):
        states, iterator_without = PipelineStates(), iter(dataset)
        next(iterator_without)
        without.append([has_state(states.take(iterator_without)) for _ in range(2)])
    return {
        "begun": begun == epochs[1][:4],
        "rest": taken(iterator) == epochs[1][4:],
        "next epoch": taken(again) == epochs[2],
        "epoch after the end": taken(ended) == epochs[2],
        "has state": [has_state(middle), has_state(end), has_state({})],
        "without": without,
    }


def test_an_iterator_goes_on_where_another_was_and_so_do_later_epochs() -> None:
    seen = run_limited(_keep_and_put_back, None)
    assert seen == {
        "begun": True,
        "rest": True,
        "next epoch": True,
        "epoch after the end": True,
        "has state": [True, True, False],
        # Random numbers and Python code have no state that could be kept, and 80 MiB are too much.
        "without": [[False, False], [False, False], [False, False]],
    }


def _unmoved() -> list[list[str]]:
    from memfit.running.checkpoints.training_state import unmoved_generators

    own, theirs = random.Random(1), np.random.RandomState(1)
    before = {"python": own.getstate(), "numpy": theirs.get_state()}
    theirs.random()
    now = {"python": own.getstate(), "numpy": theirs.get_state()}
    return [list(unmoved_generators(before, now)), list(unmoved_generators(before, before))]


def test_generators_that_were_not_drawn_from_are_known() -> None:
    assert run_limited(_unmoved, None) == [["python"], ["python", "numpy"]]
