"""What a watch costs, and what models in a loop leave behind, with `clear_session`, with `memfit.release`.

A fit and a loop of one's own run with and without a watch in turns, in one process; a ratio is that of two
runs side by side. Models are made, trained and dropped in a process for each way; what the process and the
allocator grow by is measured after a warm-up. `--seconds` and `--rounds` make it shorter or longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from _processes import in_process
from _results import write_results

WARM, MODELS = 6, 30
LIMIT_BYTES = 4 << 30
WAYS = ("nothing", "clear_session", "release")


def _overhead(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The ratio of a training under a watch to the same without, and what the watch saw."""
    import memfit

    train = {"fit": _fit, "loop": _loop}[name]()
    train(20)
    began = time.perf_counter()
    train(100)
    steps = max(100, round(100 * seconds / (time.perf_counter() - began)))
    ratios, processor_ratios, readings = [], [], 0
    for number in range(rounds):
        times, processors = {}, {}
        for watched in (True, False) if number % 2 else (False, True):
            began, processor_began = time.perf_counter(), time.process_time()
            if watched:
                with memfit.watch() as watch:
                    train(steps)
                readings = len(watch.timeline)
                assert not watch.leaks, watch.leaks
            else:
                train(steps)
            times[watched] = time.perf_counter() - began
            processors[watched] = time.process_time() - processor_began
        processor_ratios.append(round(processors[True] / processors[False], 4))
        ratios.append(round(times[True] / times[False], 4))
        print(name, ratios[-1], processor_ratios[-1], file=sys.stderr, flush=True)
    return {
        "steps": steps,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "ratio_of_processor_time": statistics.median(processor_ratios),
        "ratios_of_processor_time": processor_ratios,
        "readings": readings,
    }


def _model(width: int = 256) -> Any:
    import keras

    dense = [keras.layers.Dense(width, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *dense, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def _fit() -> Callable[[int], None]:
    import numpy as np
    import tensorflow as tf

    model = _model()
    batch = (np.ones((64, 64), "float32"), np.ones((64, 1), "float32"))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return lambda steps: model.fit(dataset, steps_per_epoch=steps, verbose=0)


def _loop() -> Callable[[int], None]:
    import keras
    import tensorflow as tf

    model, optimizer = _model(), keras.optimizers.Adam()
    x, y = tf.ones((64, 64)), tf.ones((64, 1))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    def train(steps: int) -> None:
        losses: list[float] = []
        for _ in range(steps):
            loss = float(step())
            losses.append(loss)

    return train


def _models(way: str) -> dict[str, float]:
    """MiB that the process and the allocator grow by for each model."""
    import gc

    import keras
    import numpy as np

    import memfit

    x, y = np.ones((8, 64), "float32"), np.ones((8, 1), "float32")

    def one() -> None:
        model = _model()
        model.train_on_batch(x, y)
        if way == "clear_session":
            keras.backend.clear_session()
        elif way == "release":
            memfit.release(model)

    def reading() -> tuple[int, int]:
        gc.collect()
        return memfit.devices.process_bytes(), memfit.devices.device_memory().current_bytes

    for _ in range(WARM):
        one()
    process, device = reading()
    began = time.perf_counter()
    for _ in range(MODELS):
        one()
    seconds = (time.perf_counter() - began) / MODELS
    process_now, device_now = reading()
    return {
        "process_mebibytes_each": round((process_now - process) / MODELS / 2**20, 3),
        "device_mebibytes_each": round((device_now - device) / MODELS / 2**20, 3),
        "seconds_each": round(seconds, 3),
    }


def main() -> None:
    """Measure the overhead of a watch, and the models in a loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of one training")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    figures: dict[str, Any] = {"models_in_a_loop": {"models": MODELS}}
    for way in WAYS:
        figures["models_in_a_loop"][way] = in_process(_models, way, limit_bytes=LIMIT_BYTES)
        print(way, figures["models_in_a_loop"][way], file=sys.stderr, flush=True)
    figures["overhead"] = {
        name: in_process(_overhead, name, options.seconds, options.rounds) for name in ("fit", "loop")
    }
    if options.dry:
        print(json.dumps(figures, indent=2))
    else:
        write_results("watch", figures)


if __name__ == "__main__":
    main()
