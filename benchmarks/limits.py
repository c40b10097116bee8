"""Trainings under limits from too small to ample, without a plan: that no process dies, and what they learn.

Eight models, two of them under XLA, on NumPy arrays, by `memfit.fit(..., plan=False)` in a process each, with
oneDNN and without. Limits are shares of the peak that the same training has under an ample one. A training is
right if it has every weight of one that has ample memory and takes the same micro-batches (`replayed`), and
those of one that has ample memory and takes whole batches (`whole`), both as shares of the largest move that
any weight made; or if it ends with `DoesNotFit` and every weight as it was. Split batches add up in another
order, so that rounding may take a sample to the other side of a kink in an activation: `whole` has room for
that. Beside it stands what plain Keras does under the same limit: it trains, raises, or its process dies.
Others may be at work on the machine: nothing here is timed.
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
REPLAYED, WHOLE = 1e-6, 2e-2
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
    return _sequential((48, 48, 3), *hidden, layers.AveragePooling2D(2), layers.Flatten())


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


def train(name: str, how: str, earlier: str | None = None) -> Row:
    """Train a model in this process, in the micro-batches of an earlier run; every weight of it."""
    import keras
    import numpy as np

    import memfit

    logging.getLogger("memfit").setLevel(logging.ERROR)
    keras.utils.set_random_seed(1)
    make, batch_size, jit_compile = MODELS[name]
    try:
        model, random = make(), np.random.default_rng(0)
    except Exception as error:
        if not memfit.devices.is_oom(error):
            raise
        return {"verdict": "no room for the weights", "right": True}
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=jit_compile)
    x = random.random((STEPS * batch_size, *model.input_shape[1:]), "float32")
    y = random.random((STEPS * batch_size, *model.output_shape[1:]), "float32")
    before = model.get_weights()
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    try:
        if how == "plain":
            model.fit(x, y, **arguments)
            return {"verdict": "trained"}
        sizes = None if earlier is None else memfit.Run.from_json(earlier)
        run = memfit.fit(model, x, y, plan=False, micro_batch_size=sizes, **arguments).run
    except memfit.errors.DoesNotFit:
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
        "weights": (before, model.get_weights()),
        "run": run.to_json(),
    }


def attempt(name: str, how: str, limit_bytes: int, earlier: str | None = None) -> Row:
    """The same in a process of its own, which may die."""
    try:
        return dict(in_process(train, name, how, earlier, limit_bytes=limit_bytes))
    except ProcessEnded as error:
        return {"verdict": f"died ({str(error).rpartition(' ')[2]})", "right": False}
    except RuntimeError as error:
        return {"verdict": f"raised {str(error)[:200]}", "right": False}


def _apart(one: Row, other: Row) -> float:
    """The largest difference between weights, as a share of the largest move."""
    import numpy as np

    def largest(these: Any, those: Any) -> float:
        return max(float(np.abs(a - b).max()) for a, b in zip(these, those, strict=True))

    return largest(one["weights"][1], other["weights"][1]) / largest(*other["weights"])


def _judged(name: str, limit_bytes: int, ample: Row) -> Row:
    """A training under a limit, held against those with ample memory."""
    row = attempt(name, "memfit", limit_bytes)
    if "weights" in row:
        again = attempt(name, "memfit", AMPLE_BYTES, row["run"])
        apart = {"replayed": _apart(row, again), "whole": _apart(row, ample)}
        row |= apart | {"right": apart["replayed"] <= REPLAYED and apart["whole"] <= WHOLE}
    plain = attempt(name, "plain", limit_bytes)["verdict"]
    return {"limit_mib": limit_bytes >> 20, **_without_weights(row), "plain": plain}


def _without_weights(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("weights", "run")}


def _compare(name: str, pool: ThreadPoolExecutor) -> Row:
    ample = attempt(name, "memfit", AMPLE_BYTES)
    if "weights" not in ample:
        return {"ample": ample}
    limits = {share: max(2, int(share * ample["peak_bytes"]) >> 20) << 20 for share in SHARES}
    tries = {share: pool.submit(_judged, name, limit, ample) for share, limit in limits.items()}
    found = {str(share): one.result() for share, one in tries.items()}
    return {**found, "ample": {**_without_weights(ample), "right": not ample["ooms"]}}


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
