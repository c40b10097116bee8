"""Every private name of Keras and TensorFlow that resuming relies on, each behind a function.

`tests/facts/test_supervision_internals.py` says for each what breaks if it goes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memfit.models.internals import overridden, replaced


def epoch_iterators() -> Any:
    """The class whose objects give `fit` the batches of one epoch after the other."""
    from keras.src.backend.tensorflow import trainer

    return trainer.TFEpochIterator


@contextmanager
def first_iterator_from(make: Callable[..., Any]) -> Iterator[None]:
    """Let the next `fit` take its batches from what `make` returns; its evaluations take theirs as ever.

    `make` is given Keras' own class and what it is made from.
    """
    from keras.src.backend.tensorflow import trainer

    kind = trainer.TFEpochIterator
    makers = [functools.partial(make, kind)]

    def made(**options: Any) -> Any:
        return (makers.pop() if makers else kind)(**options)

    with replaced(trainer, "TFEpochIterator", made):
        yield


@contextmanager
def metrics_where_no_step_ran(model: Any) -> Iterator[None]:
    """Let an epoch whose last batches were trained on before say what its metrics say."""
    results = model._get_metrics_result_or_logs

    def found(logs: Any) -> Any:
        return results(logs) if logs else model.get_metrics_result()

    with overridden(model, "_get_metrics_result_or_logs", found):
        yield


def global_seed_state() -> Any:
    """The state of the generator behind `keras.random` without a seed, made if there is none yet."""
    from keras.src.random import seed_generator

    return seed_generator.global_seed_generator().state


def operation_seeds() -> random.Random:
    """Where TensorFlow draws the seeds of operations from that have none, under a global seed."""
    from tensorflow.python.eager import context

    seeds: random.Random = context.context()._rng
    return seeds


def has_global_seed() -> bool:
    """Whether somebody has set TensorFlow's global seed."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None
