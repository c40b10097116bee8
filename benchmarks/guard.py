"""What the guard costs: time and memory of guarded training against plain Keras, side by side.

Both sides train the same model on the same tf.data feed. They take turns step by step, each time in the
other order, and a figure is the median of the ratios of neighbours, so that a busy moment hits both alike.
Every model has a process of its own, under a limit that never bites.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from _children import in_child
from _results import write_results

PAIRS = 100
WARM_UP = 10
STEPS = 6
LIMIT_BYTES = 2 << 30


def build(kind: str) -> tuple[Any, tuple[int, ...], int]:
    """A compiled model, the shape of a sample, and the batch size: a step takes 50 ms or more."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    if kind == "dense":
        shape: tuple[int, ...] = (1024,)
        inputs = keras.Input(shape)
        x = inputs
        for _ in range(4):
            x = layers.Dense(1024, activation="relu")(x)
        batch_size = 512
    elif kind == "convolutional":
        shape = (32, 32, 3)
        inputs = keras.Input(shape)
        x = inputs
        for width in (32, 64, 64):
            x = layers.Conv2D(width, 3, padding="same")(x)
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
            x = layers.MaxPooling2D()(x)
        x = layers.Flatten()(x)
        batch_size = 64
    else:
        shape = (64, 128)
        inputs = keras.Input(shape)
        x = inputs
        for _ in range(2):
            attended = layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x)
            x = layers.LayerNormalization()(layers.Add()([x, attended]))
            wide = layers.Dense(128)(layers.Dense(256, activation="gelu")(x))
            x = layers.LayerNormalization()(layers.Add()([x, wide]))
        x = layers.GlobalAveragePooling1D()(x)
        batch_size = 64
    model = keras.Model(inputs, layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model, shape, batch_size


def feed(shape: tuple[int, ...], batch_size: int) -> Any:
    """The same batches for both sides."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    batch = (
        tf.constant(random.random((batch_size, *shape), "float32")),
        tf.constant(random.integers(0, 10, batch_size)),
    )
    return tf.data.Dataset.from_tensors(batch).repeat()


def train(how: str, model: Any, data: Any, steps: int, micro_batch_size: int | None = None) -> list[float]:
    """Seconds of each step of a `fit`, plain or guarded, from the end of one to the end of the next."""
    import keras

    import memfit

    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            ends.append(time.perf_counter())

    arguments: dict[str, Any] = {
        "steps_per_epoch": steps + 1, "verbose": 0, "shuffle": False, "callbacks": [Clock()],
    }  # fmt: skip
    if how == "plain":
        model.fit(data, **arguments)
    else:
        memfit.fit(model, data, micro_batch_size=micro_batch_size, **arguments)
    return [end - begin for begin, end in itertools.pairwise(ends)]


def peak_of(how: str, model: Any, data: Any) -> int:
    """The most that is in use during warm steps, above what other models hold."""
    import memfit

    with memfit.devices.measure_peak() as measured:
        train(how, model, data, STEPS)
    return measured.over_base_bytes


def measure(kind: str) -> dict[str, Any]:
    """All figures of one model."""
    import logging

    from memfit.guarding.step.rollback import reserve_bytes

    logging.getLogger("memfit").setLevel(logging.ERROR)
    models = {}
    for how in ("plain", "guarded"):
        models[how], shape, batch_size = build(kind)
    quarter = batch_size // 4
    whole, part = feed(shape, batch_size), feed(shape, quarter)
    for how, model in models.items():
        train(how, model, whole, 2)
    peaks = {how: min(peak_of(how, model, whole) for _ in range(3)) for how, model in models.items()}
    small, _, _ = build(kind)
    split, _, _ = build(kind)
    with ExitStack() as open_guards:
        whole_times = take_turns(
            stepper(models["plain"], whole), stepper(models["guarded"], whole, open_guards, batch_size)
        )
        part_times = take_turns(
            stepper(small, part), stepper(split, whole, open_guards, quarter), times_of_first=4
        )
    names = ("plain", "guarded"), ("plain quarters", "split in 4")
    medians = {
        name: statistics.median(column)
        for pair, times in zip(names, (whole_times, part_times), strict=True)
        for name, column in zip(pair, zip(*times, strict=True), strict=True)
    }
    gradients = sum(v.shape.num_elements() * 4 for v in models["plain"].trainable_variables)
    return {
        "batch_size": batch_size,
        "step_seconds": {name: round(value, 4) for name, value in medians.items()},
        "guarded_to_plain": ratio(whole_times),
        "split_to_plain_quarters": ratio(part_times),
        "peak_bytes": peaks,
        "peak_over_plain_bytes": peaks["guarded"] - peaks["plain"],
        "allowed_over_plain_bytes": gradients + reserve_bytes(),
    }


def stepper(
    model: Any, data: Any, guards: ExitStack | None = None, micro_batch_size: int | None = None
) -> Callable[[], Any]:
    """One step of what `fit` would run, plain or (with `guards`, which keep it open) guarded."""
    from memfit.guarding.protection import Protection
    from memfit.machine import find_budget

    if guards is not None:
        protection = Protection(model, budget=find_budget(), micro_batch_size=micro_batch_size)
        guards.enter_context(protection.attached())
    model.make_train_function(force=True)
    step, batches = model.train_function, iter(data)
    return lambda: step(batches)


def take_turns(
    theirs: Callable[[], Any], ours: Callable[[], Any], times_of_first: int = 1
) -> list[tuple[float, float]]:
    """Seconds of both sides, step by step and each time in the other order, after some steps to warm up."""
    times = []
    for number in range(WARM_UP + PAIRS):
        seconds = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            for _ in range(1 if side else times_of_first):
                (ours if side else theirs)()
            seconds[side] = time.perf_counter() - began
        if number >= WARM_UP:
            times.append((seconds[0], seconds[1]))
    return times


def ratio(times: list[tuple[float, float]]) -> float:
    """The median over all pairs of our time against theirs."""
    return round(statistics.median(ours / theirs for theirs, ours in times), 3)


def hold_all_but(free_bytes: int) -> list[Any]:
    """Take the device's memory until only this much is left; in blocks, since it is not in one piece."""
    import tensorflow as tf

    import memfit

    held = []
    block = 64 << 20
    while block >= 1 << 20:
        left = memfit.devices.limit_in_force() - memfit.devices.device_memory().current_bytes - free_bytes
        if left < block:
            block //= 2
            continue
        held.append(tf.zeros((block,), tf.uint8))
    return held


def survive() -> dict[str, Any]:
    """What one survived out-of-memory error costs beyond TensorFlow's own wait."""
    import logging

    import tensorflow as tf

    import memfit

    logging.getLogger("memfit").setLevel(logging.ERROR)
    model, shape, batch_size = build("transformer")
    data = feed(shape, batch_size)
    train("guarded", model, data, 2, batch_size // 2)  # both rungs traced and warm
    train("guarded", model, data, 2, batch_size)
    (half,) = train("guarded", model, data, 1, batch_size // 2)
    train("guarded", model, data, 1, batch_size)
    with memfit.devices.measure_peak() as measured:
        train("guarded", model, data, 1, batch_size)
    hogs = hold_all_but(int(0.7 * measured.over_base_bytes))
    began = time.perf_counter()
    try:
        tf.zeros((measured.over_base_bytes,), tf.uint8)
    except tf.errors.ResourceExhaustedError:
        wait = time.perf_counter() - began
    began = time.perf_counter()
    history = memfit.fit(
        model, data, steps_per_epoch=1, verbose=0, shuffle=False, micro_batch_size=batch_size
    )
    total = time.perf_counter() - began
    del hogs
    ooms = len(history.run.ooms)
    return {
        "ooms": ooms,
        "wait_of_tensorflow_seconds": round(wait, 2),
        "step_with_ooms_seconds": round(total, 2),
        "beyond_the_wait_seconds_per_oom": round((total - ooms * wait - half) / ooms, 2),
    }


def main(kinds: list[str]) -> None:
    """Measure each model in a process of its own, then one error that is survived."""
    figures: dict[str, Any] = {"pairs": PAIRS}
    for kind in kinds or ["dense", "convolutional", "transformer"]:
        print(f"measuring {kind} ...", file=sys.stderr)
        figures[kind] = in_child(measure, LIMIT_BYTES, kind=kind)
        print(figures[kind], file=sys.stderr)
    print("measuring one survived error ...", file=sys.stderr)
    figures["survived"] = in_child(survive, LIMIT_BYTES)
    write_results("guard", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
