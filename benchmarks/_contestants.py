"""Processes that stay, and train an epoch in turns, each in a way of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

from _processes import QUIET, ProcessEnded
from _speed_models import compiled

WORLDS = {"oneDNN on": "1", "oneDNN off": "0"}
_PAUSE_SECONDS = 1.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to train a model: with plain Keras or memfit, and under which limit."""

    name: str
    steps: int  # of an epoch, on batches of the model's own size
    how: Literal["plain", "memfit", "chosen"] = "plain"
    limit_bytes: int | None = None
    batch_size: int | None = None  # another than the model's own
    accumulation_steps: int = 1
    micro_batch_size: int | None = None  # of a configuration that was chosen by hand
    cuts: Any = ()


class Contestant:
    """A process that trains in one way."""

    def __init__(self, way: Way, *, onednn: str, home: str = "") -> None:
        # What TensorFlow reads as it starts goes with the process.
        environment = {**QUIET, "TF_ENABLE_ONEDNN_OPTS": onednn, "MEMFIT_HOME": home}
        environment = {key: value for key, value in environment.items() if value}
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        before = {key: os.environ.get(key) for key in environment}
        os.environ.update(environment)
        self._process = context.Process(target=_train_when_asked, args=(theirs, way), daemon=True)
        self._process.start()
        theirs.close()
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})

    def train(self, micro_batch_size: int | None = None) -> Row:
        """An epoch, once the threads of the other processes have gone to sleep."""
        time.sleep(_PAUSE_SECONDS)
        try:
            self._orders.send(micro_batch_size)
            answer = dict(self._orders.recv())
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise ProcessEnded(f"exit code {self._process.exitcode}") from error
        if "error" in answer:
            raise ProcessEnded(answer["error"])
        return answer

    def end(self) -> None:
        """No more."""
        self._process.kill()
        self._process.join()


def _train_when_asked(orders: Connection, way: Way) -> None:
    """Train an epoch each time that it is asked for, and answer with what that took."""
    import logging

    logging.getLogger("memfit").setLevel(logging.ERROR)
    _limit(way)
    import numpy as np

    model, x_shape, y_shape, batch_size = compiled(way.name, way.accumulation_steps)
    random = np.random.default_rng(0)
    samples = way.steps * batch_size
    x = random.random((samples, *x_shape), "float32")
    y = random.random((samples, *y_shape), "float32")
    with _cut(model, way.cuts):
        while True:
            if size := orders.recv():
                way = replace(way, micro_batch_size=size)
            clock, processor = time.perf_counter(), time.process_time()
            try:
                answer = _train(model, x, y, way, batch_size)
            except Exception as error:  # noqa: BLE001 - that it ran out is an answer, too
                answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            answer["seconds"] = time.perf_counter() - clock
            answer["processor_seconds"] = time.process_time() - processor
            orders.send(answer)


def _limit(way: Way) -> None:
    if way.limit_bytes is None:
        return
    if way.how == "plain":  # as plain Keras comes, on the allocator that counts
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
        os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(way.limit_bytes >> 20)
        return
    import memfit

    memfit.limit(way.limit_bytes)


def _cut(model: Any, cuts: Any) -> Any:
    if not cuts:
        return nullcontext()
    from memfit.rematerialising.rematerialise import apply_cuts

    return apply_cuts(model, cuts)


def _train(model: Any, x: Any, y: Any, way: Way, batch_size: int) -> Row:
    options = {"shuffle": False, "verbose": 0}
    if way.how == "plain":
        model.fit(x, y, batch_size=(way.batch_size or batch_size) // way.accumulation_steps, **options)
        return {"peak_bytes": _peak() if way.limit_bytes else None, "ooms": 0}
    import memfit

    chosen = {"plan": False, "micro_batch_size": way.micro_batch_size} if way.how == "chosen" else {}
    run = memfit.fit(model, x, y, batch_size=batch_size, **chosen, **options).run
    return {
        "peak_bytes": run.peak_bytes,
        "ooms": len(run.ooms),
        "micro_batch_size": run.micro_batch_size,
        "cuts": len((run.plan and run.plan.chosen.remat) or ()),
        "notes": list(run.notes),
    }


def _peak() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
