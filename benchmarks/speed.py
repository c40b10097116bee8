"""The cost of memfit where the whole batch fits, against plain Keras as it comes.

Each model is trained by two processes that stay, one plain and one with memfit, an epoch in turns: time by
the clock and of the processor, as the ratio of medians over pairs. Peaks come from memfit's own process and
from a third one, plain with TensorFlow's counting allocator. With oneDNN and without it, as two tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from _results import write_results

STEPS = 6  # of an epoch
PAIRS = 7
_PAUSE_SECONDS = 1.5
LIMIT = "12GiB"
WORLDS = {"oneDNN on": "1", "oneDNN off": "0"}
Model = tuple[Any, tuple[int, ...], tuple[int, ...], int]  # the model, shapes of x and y, batch size


def _dense() -> Model:
    import keras
    from keras import layers

    hidden = [layers.Dense(1024, "relu") for _ in range(4)]
    return keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(8)]), (512,), (8,), 1024


def _convolutions() -> Model:
    import keras
    from keras import layers

    hidden = [layers.Conv2D(width, 3, padding="same", activation="relu") for width in (32, 32, 64, 32)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *hidden, layers.Conv2D(3, 3, padding="same")])
    return model, (64, 64, 3), (64, 64, 3), 32


def _volumes() -> Model:
    import keras
    from keras import layers

    hidden: list[Any] = []
    for width in (16, 32, 64):
        hidden += [layers.Conv3D(width, 3, padding="same", activation="relu"), layers.MaxPooling3D()]
    model = keras.Sequential([keras.Input((16, 32, 32, 1)), *hidden, layers.Flatten(), layers.Dense(4)])
    return model, (16, 32, 32, 1), (4,), 32


def _depthwise() -> Model:
    import keras

    model = keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)
    return model, (96, 96, 3), (10,), 16


def _transformer() -> Model:
    import keras
    from keras import layers

    tokens = keras.Input((128, 64))
    x = tokens
    for _ in range(4):
        normed = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(4, 32)(normed, normed)])
        x = layers.add([x, layers.Dense(64)(layers.Dense(256, "gelu")(layers.LayerNormalization()(x)))])
    return keras.Model(tokens, layers.Dense(8)(layers.GlobalAveragePooling1D()(x))), (128, 64), (8,), 64


def _lstm() -> Model:
    import keras
    from keras import layers

    hidden = [layers.LSTM(128, return_sequences=True), layers.LSTM(128), layers.Dense(4)]
    return keras.Sequential([keras.Input((96, 32)), *hidden]), (96, 32), (4,), 128


def _resnet50() -> Model:
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)
    return model, (96, 96, 3), (10,), 16


def _unet() -> Model:
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        return x

    image = keras.Input((96, 96, 3))
    x, kept = image, []
    for width in (16, 32, 64):
        x = block(x, width)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    for width, skipped in zip((64, 32, 16), reversed(kept), strict=True):
        x = block(layers.concatenate([layers.UpSampling2D()(x), skipped]), width)
    return keras.Model(image, layers.Conv2D(1, 1)(x)), (96, 96, 3), (96, 96, 1), 16


MODELS: dict[str, Callable[[], Model]] = {
    "dense": _dense,
    "convolutions": _convolutions,
    "3-D convolutions": _volumes,
    "MobileNetV2": _depthwise,
    "transformer": _transformer,
    "LSTM": _lstm,
    "ResNet50": _resnet50,
    "U-Net": _unet,
}


def _contestant(orders: Connection, name: str, how: str) -> None:
    """A process that trains an epoch each time that it is asked to, and says what that took."""
    if how == "memfit":
        import memfit

        memfit.limit(LIMIT)
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model, x_shape, y_shape, batch_size = MODELS[name]()
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    random = np.random.default_rng(0)
    x = random.random((STEPS * batch_size, *x_shape), "float32")
    y = random.random((STEPS * batch_size, *y_shape), "float32")
    options = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    answer: dict[str, Any] = {}
    while orders.recv() == "train":
        clock, processor = time.perf_counter(), time.process_time()
        if how == "memfit":
            run = memfit.fit(model, x, y, **options).run
            answer["peak_bytes"], answer["ooms"] = run.peak_bytes, len(run.ooms)
        else:
            model.fit(x, y, **options)
        answer["seconds"] = time.perf_counter() - clock
        answer["processor_seconds"] = time.process_time() - processor
        if how == "counted":
            answer["peak_bytes"] = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        orders.send(answer)
    os._exit(0)


class Contestant:
    """One of those processes."""

    def __init__(self, name: str, how: str, *, onednn: str) -> None:
        os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = onednn
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1" if how == "counted" else "0"
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_contestant, args=(theirs, name, how))
        self._process.start()
        theirs.close()

    def train(self) -> dict[str, Any]:
        """An epoch, once the threads of the other process have gone to sleep."""
        time.sleep(_PAUSE_SECONDS)
        self._orders.send("train")
        return dict(self._orders.recv())

    def end(self) -> None:
        """No more."""
        self._orders.send("end")
        self._process.join()


def _compare(name: str, *, onednn: str, pairs: int) -> dict[str, Any]:
    counted = Contestant(name, "counted", onednn=onednn)
    plain_peak = max(counted.train()["peak_bytes"] for _ in range(2))
    counted.end()
    both = {how: Contestant(name, how, onednn=onednn) for how in ("plain", "memfit")}
    for contestant in both.values():
        contestant.train()  # traces
    rounds = []
    for number in range(pairs):
        order = list(both.items()) if number % 2 == 0 else list(reversed(both.items()))
        rounds.append({how: contestant.train() for how, contestant in order})
    for contestant in both.values():
        contestant.end()

    def ratio(what: str) -> float:
        return statistics.median(one["memfit"][what] for one in rounds) / statistics.median(
            one["plain"][what] for one in rounds
        )

    spread = sorted(one["memfit"]["seconds"] / one["plain"]["seconds"] for one in rounds)
    peak = max(one["memfit"]["peak_bytes"] for one in rounds)
    return {
        "time": round(ratio("seconds"), 3),
        "processor_time": round(ratio("processor_seconds"), 3),
        "spread": [round(spread[0], 3), round(spread[-1], 3)],
        "seconds_per_step": round(statistics.median(one["plain"]["seconds"] for one in rounds) / STEPS, 4),
        "peak_mib": peak >> 20,
        "plain_peak_mib": plain_peak >> 20,
        "ooms": rounds[-1]["memfit"]["ooms"],
    }


def main() -> None:
    """Both tables; one model or fewer pairs on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for world in options.worlds:
        rows, onednn = {}, WORLDS[world]
        for name in options.models:
            rows[name] = _compare(name, onednn=onednn, pairs=options.pairs)
            print(world, name, rows[name], file=sys.stderr, flush=True)
        times = [row["time"] for row in rows.values()]
        figures[world] = {"median": round(statistics.median(times), 3), "most": max(times), "models": rows}
    write_results("speed", figures)


if __name__ == "__main__":
    main()
