"""Trainings under limits from too small to ample, without a plan: that no process dies, and what they learn.

Eight models, two of them under XLA, on NumPy arrays, by `memfit.fit(..., plan=False)` in a process each, with
oneDNN and without. Limits are shares of the peak that the same training has under an ample one. A training is
right if every weight is that of the ample one, within `RIGHT` of the largest move that any weight made, or
if it ends with `DoesNotFit` and every weight as it was. Beside it stands what plain Keras does under the same
limit: it trains, raises, or its process dies. Others may be at work on the machine: nothing here is timed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _processes import ProcessEnded, in_process
from _results import write_results

SHARES = (0.25, 0.45, 0.65, 0.9)
AMPLE_BYTES = 4 << 30
RIGHT = 2e-3  # of the largest move: sums in another order, over ten steps
STEPS = 10
WORKERS = 4  # most of them wait: TensorFlow takes ten seconds to say that it ran out
WORLDS = {"oneDNN on": "1", "oneDNN off": "0"}
Row = dict[str, Any]


def _sequential(shape: tuple[int, ...], *hidden: Any) -> Any:
    import keras
    from keras import layers

    return keras.Sequential([keras.Input(shape), *hidden, layers.Dense(4)])


def _dense() -> Any:
    from keras import layers

    return _sequential((256,), *[layers.Dense(512, "relu") for _ in range(4)])


def _convolutions() -> Any:
    from keras import layers

    hidden = [layers.Conv2D(width, 3, padding="same", activation="relu") for width in (16, 32, 32)]
    return _sequential((48, 48, 3), *hidden, layers.GlobalAveragePooling2D())


def _volumes() -> Any:
    from keras import layers

    hidden: list[Any] = []
    for width in (8, 16, 32):
        hidden += [layers.Conv3D(width, 3, padding="same", activation="relu"), layers.MaxPooling3D()]
    return _sequential((16, 32, 32, 1), *hidden, layers.Flatten())


def _separable() -> Any:
    from keras import layers

    hidden: list[Any] = [layers.Conv2D(16, 3, padding="same", activation="relu")]
    for width in (32, 48):
        hidden += [layers.DepthwiseConv2D(3, padding="same"), layers.Conv2D(width, 1, activation="relu")]
    return _sequential((48, 48, 3), *hidden, layers.AveragePooling2D(), layers.Flatten())


def _transformer() -> Any:
    import keras
    from keras import layers

    tokens = x = keras.Input((64, 32))
    for _ in range(3):
        normed = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(4, 16)(normed, normed)])
        x = layers.add([x, layers.Dense(32)(layers.Dense(128, "gelu")(layers.LayerNormalization()(x)))])
    return keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def _recurrent() -> Any:
    from keras import layers

    return _sequential((48, 16), layers.LSTM(64, return_sequences=True), layers.LSTM(64))


# With the batch size, and whether XLA compiles the step.
MODELS: dict[str, tuple[Callable[[], Any], int, bool]] = {
    "dense": (_dense, 512, False),
    "convolutions": (_convolutions, 32, False),
    "3-D convolutions": (_volumes, 16, False),
    "separable convolutions": (_separable, 32, False),
    "transformer": (_transformer, 64, False),
    "LSTM": (_recurrent, 128, False),
    "convolutions, XLA": (_convolutions, 32, True),
    "transformer, XLA": (_transformer, 64, True),
}


def train(name: str, how: str) -> Row:
    """Train a model in this process: what came of it, and every weight."""
    import keras
    import numpy as np

    import memfit

    logging.getLogger("memfit").setLevel(logging.ERROR)
    keras.utils.set_random_seed(1)
    make, batch_size, jit_compile = MODELS[name]
    model, random = make(), np.random.default_rng(0)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", jit_compile=jit_compile)
    x = random.random((STEPS * batch_size, *model.input_shape[1:]), "float32")
    y = random.random((STEPS * batch_size, *model.output_shape[1:]), "float32")
    before = model.get_weights()
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    try:
        if how == "plain":
            model.fit(x, y, **arguments)
            return {"verdict": "trained"}
        run = memfit.fit(model, x, y, plan=False, **arguments).run
    except memfit.DoesNotFit:
        same = all(map(np.array_equal, before, model.get_weights()))
        return {"verdict": "does not fit", "right": same}
    except Exception as error:
        if not memfit.devices.is_oom(error):
            raise
        return {"verdict": "raised"}
    return {
        "verdict": "trained",
        "ooms": len(run.ooms),
        "micro_batch_size": run.micro_batch_size,
        "peak_bytes": run.peak_bytes,
        "before": before,
        "after": model.get_weights(),
    }


def attempt(name: str, how: str, limit_bytes: int) -> Row:
    """The same in a process of its own, which may die."""
    try:
        return dict(in_process(train, name, how, limit_bytes=limit_bytes))
    except ProcessEnded as error:
        return {"verdict": f"died ({str(error).rpartition(' ')[2]})", "right": False}
    except RuntimeError as error:
        return {"verdict": f"raised {str(error)[:200]}", "right": False}


def _held_against(row: Row, ample: Row) -> Row:
    """A training without its weights, but with how far they are from those of the ample one."""
    import numpy as np

    if "after" in row:
        moved = max(float(np.abs(a - b).max()) for a, b in zip(ample["after"], ample["before"], strict=True))
        apart = max(float(np.abs(a - b).max()) for a, b in zip(row["after"], ample["after"], strict=True))
        row |= {"difference": apart / moved, "right": apart <= RIGHT * moved}
    return {key: value for key, value in row.items() if key not in ("before", "after")}


def _compare(name: str, pool: ThreadPoolExecutor) -> Row:
    ample = attempt(name, "memfit", AMPLE_BYTES)
    limits = {share: max(2 << 20, int(share * ample["peak_bytes"])) >> 20 << 20 for share in SHARES}
    rows: Row = {"ample": _held_against(dict(ample), ample)}
    tries = {
        (share, how): pool.submit(attempt, name, how, limit) for share, limit in limits.items()
        for how in ("memfit", "plain")
    }  # fmt: skip
    for share, limit in limits.items():
        found = _held_against(tries[share, "memfit"].result(), ample)
        rows[str(share)] = {
            "limit_mib": limit >> 20, **found, "plain": tries[share, "plain"].result()["verdict"]
        }  # fmt: skip
    return rows


def main() -> int:
    """All models in one world or both; 1 if a training was not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--here", help=argparse.SUPPRESS)  # the world of this process
    options = parser.parse_args()
    if options.here:
        print(json.dumps(_world(options.here, options.models)))
        return 0
    figures: Row = {}
    for world in options.worlds:
        command = [sys.executable, __file__, "--here", world, "--models", *options.models]
        environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": WORLDS[world]}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        figures[world] = json.loads(done.stdout)
    write_results("limits", figures, quiet=True)
    return 1 if sum(row["wrong"] for row in figures.values()) else 0


def _world(world: str, models: list[str]) -> Row:
    found: Row = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for name in models:
            found[name] = _compare(name, pool)
            print(world, name, found[name], file=sys.stderr, flush=True)
    rows = [row for model in found.values() for row in model.values()]
    wrong = sum(not row["right"] for row in rows)
    died = sum(row["verdict"].startswith("died") for row in rows)
    plain = [row["plain"] for row in rows if "plain" in row]
    return {
        "trainings": len(rows),
        "wrong": wrong,
        "died": died,
        "plain_died": sum(one.startswith("died") for one in plain),
        "plain_raised": plain.count("raised"),
        "models": found,
    }


if __name__ == "__main__":
    sys.exit(main())
