"""Real out-of-memory errors in every phase of training: a fault, what it may not change, what comes after.

Memory is taken by real tensors of the same pool ("pressure") at the moment that a fault names. Each sample
carries an id, and a layer counts the ids that it has seen in training.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from limited import run_limited

BATCH = 64
STEPS = 5
LIMIT = "192MiB"

# phase, which step, graph or XLA; every one that applies
MATRIX = (
    *itertools.product(
        ("forward", "backward", "evaluation", "prediction"), ("first", "later"), ("graph", "XLA")
    ),
    *itertools.product(("commit", "callback holds", "callback fails"), ("first", "later"), ("graph",)),
    ("slots", "first", "graph"),
)


def nothing_is_foreseen() -> None:
    """Have the guard of this process try what it knows not to fit: a fault is what it does not foresee."""
    from memfit.guarding import micro_batch_size
    from memfit.guarding.step import room

    room._SURELY = room._FAR_BELOW = 0.0
    micro_batch_size._TIGHTER = micro_batch_size._GROWS = 0.0


class Pressure:
    """Holds memory of the device's pool until only so much is free.

    The pool is claimed at once first: where it grows piece by piece, what is free is not in one piece.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        import memfit

        self._held: list[Any] = []
        tf.zeros(((memfit.devices.limit_in_force() or 0) * 31 // 32,), tf.uint8)

    def leave(self, free_bytes: int) -> None:
        import tensorflow as tf

        from memfit.machine.limits import free_bytes as free

        block = 1 << 20
        while block >= 64 << 10:
            if (free() or 0) - free_bytes < 4 * block:
                block //= 4
            else:
                self._held.append(tf.zeros((block - 256,), tf.uint8))

    def release(self) -> None:
        self._held.clear()


def make(phase: str, how: str) -> Any:
    """A model that counts the samples it trains on, and is large where the phase wants it to be."""
    import keras
    from keras import layers, ops

    keras.utils.set_random_seed(3)

    class Counts(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.seen = self.add_weight(
                name="seen", shape=(BATCH * STEPS,), initializer="zeros", trainable=False
            )

        def call(self, ids: Any, training: bool = False) -> Any:
            if training:
                self.seen.assign(self.seen + ops.sum(ops.one_hot(ids, BATCH * STEPS), axis=0))
            return ids

    rows, ids = keras.Input((96, 64), name="rows"), keras.Input((), dtype="int32", name="ids")
    counted = layers.Lambda(lambda t: 0.0 * ops.cast(t[:, None], "float32"), output_shape=(1,))(Counts()(ids))
    x = rows
    if phase in ("commit", "slots"):
        x = layers.Dense(2048)(layers.Dense(1024)(layers.GlobalAveragePooling1D()(x)))
    elif phase == "backward":
        # XLA would see through the layer; without it, threads may run out in the last forward op instead.
        costly = [_costly_to_differentiate()] if how == "graph" else []
        for layer in (layers.Dense(64 if costly else 1024, activation="tanh"), *costly):
            x = layer(x)
        x = layers.GlobalAveragePooling1D()(x)
    else:
        for _ in range(4):
            x = layers.Dense(64, activation="tanh")(x)
        x = layers.GlobalAveragePooling1D()(x)
        x = layers.Dropout(0.1)(x) if how == "graph" else x  # XLA draws other numbers
    outputs = layers.Dense(4, activation="softmax")(layers.Concatenate()([x, counted]))
    model = keras.Model({"rows": rows, "ids": ids}, outputs)
    model.compile(
        keras.optimizers.Adam(1e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=how == "XLA",
    )
    return model


def _costly_to_differentiate() -> Any:
    """A layer that does nothing, and whose gradient takes 48 MiB for a batch on the way."""
    import keras
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            with tf.name_scope("gradient"):
                copies = tf.tile(upstream[..., None], (1, 1, 1, 32))
                return tf.reduce_mean(copies, axis=-1)

        return tf.identity(x), gradient

    return keras.layers.Lambda(same)


def data() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    count = BATCH * STEPS
    return {"rows": random.random((count, 96, 64), "float32"), "ids": np.arange(count)}, random.integers(
        0, 4, count
    )


@contextmanager
def watched(before: dict[str, Any]) -> Iterator[list[bool]]:
    """Whether nothing had changed, each time that an error was survived before the commit."""
    from memfit.guarding.run_notes import RunNotes

    unchanged: list[bool] = []
    survived = RunNotes.survived

    def look(self: Any, oom: Any, note: str) -> None:
        if oom.phase != "commit":
            unchanged.append(before["values"].is_unchanged())
        survived(self, oom, note)

    RunNotes.survived = look  # type: ignore[method-assign]
    try:
        yield unchanged
    finally:
        RunNotes.survived = survived  # type: ignore[method-assign]


def train(
    phase: str, when: str, how: str, faulty: bool, replay: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Five steps with a fault in one of them (or without any), and everything that is left afterwards."""
    import logging

    import numpy as np

    import memfit
    from guarding.small_models import every_digest, prepare, variables

    logging.getLogger("memfit").setLevel(logging.ERROR)
    nothing_is_foreseen()
    pressure, before = Pressure(), {}
    prepare(floatx="float32", deterministic=how == "graph")
    model = make(phase, how)
    x, y = data()
    result: dict[str, Any] = {"raised": []}
    callback = _callback(phase, 0 if when == "first" else 3, pressure, before, faulty=faulty)
    size: Any = None if replay is None else memfit.Run.from_dict(replay)
    arguments: dict[str, Any] = {
        "batch_size": BATCH, "verbose": 0, "shuffle": False, "callbacks": [callback],
        "micro_batch_size": BATCH // 2 if phase == "commit" else size,
    }  # fmt: skip
    if phase == "evaluation":
        arguments["validation_data"] = (x, y)
    with watched(before) as unchanged, _commit_pressed(callback, pressure, phase, faulty=faulty):
        if phase == "slots" and faulty:
            pressure.leave(6 << 20)
            weights = [value.tobytes() for value in model.get_weights()]
            result["raised"].append(_raised(lambda: memfit.fit(model, x, y, plan=False, **arguments)))
            result["kept"] = [
                v.tobytes() for v in model.get_weights()
            ] == weights and not model.optimizer.built
            pressure.release()
        if phase == "callback fails":
            _in_two(model, x, y, arguments, callback, result)
        elif phase == "prediction":
            with memfit.protect(model) as protection:
                outputs = model.predict(x, batch_size=BATCH, verbose=0, callbacks=[callback])
            result["outputs"] = np.asarray(outputs, np.float64).sum(axis=0).tolist()
            result["run"] = protection.run.to_dict()
        else:
            history = memfit.fit(model, x, y, plan=False, **arguments)
            result["run"], result["logs"] = history.run.to_dict(), history.history
    seen = next(v for v in model.non_trainable_variables if v.path.endswith("seen")).numpy()
    values = (
        [float(np.abs(value.astype(np.float64)).sum()) for value in variables(model)]
        if model.optimizer.built
        else []
    )
    return {
        **result,
        "digest": every_digest(model),
        "sums": values,
        "seen": sorted({float(count) for count in seen}),
        "unchanged": unchanged,
    }


def _raised(call: Any) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test judges what came
        return type(error).__name__
    return "nothing"


def _in_two(
    model: Any, x: Any, y: Any, arguments: dict[str, Any], callback: Any, result: dict[str, Any]
) -> None:
    """Train up to where a callback fails, then on the rest."""
    import memfit

    until = BATCH * (callback.step + 1)
    first = {name: values[:until] for name, values in x.items()}
    rest = {name: values[until:] for name, values in x.items()}
    result["raised"].append(_raised(lambda: memfit.fit(model, first, y[:until], plan=False, **arguments)))
    result["iterations"] = int(model.optimizer.iterations)
    history = memfit.fit(model, rest, y[until:], **{**arguments, "callbacks": [], "plan": False})
    result["run"] = history.run.to_dict()


@contextmanager
def _commit_pressed(callback: Any, pressure: Pressure, phase: str, *, faulty: bool) -> Iterator[None]:
    """Something else takes the memory between the look at what is free and the update."""
    from memfit.guarding.step.commit import Commit

    has_room = Commit._has_room

    def then_taken(self: Any) -> bool:
        room = has_room(self)
        if phase == "commit" and faulty and callback.now == callback.step:
            pressure.leave(20 << 20)
        return room

    Commit._has_room = then_taken  # type: ignore[method-assign]
    try:
        yield
    finally:
        Commit._has_room = has_room  # type: ignore[method-assign]


# What is left free: in the backward pass, enough for the gradient of half a batch.
_FREE_BYTES = {"backward": 44 << 20, "evaluation": 1 << 20, "prediction": 1 << 20}


def _callback(  # noqa: C901 - one moment for each phase
    phase: str, step: int, pressure: Pressure, before: dict[str, Any], *, faulty: bool
) -> Any:
    import keras
    import tensorflow as tf

    from guarding.small_models import Remembered

    class Fault(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.step, self.now = step, -1

        def _begin(self, number: int, presses: bool) -> None:
            self.now = number
            before["values"] = Remembered(self.model)
            if faulty and number == self.step and presses:
                pressure.leave(_FREE_BYTES.get(phase, 3 << 20))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begin(batch, phase in ("forward", "backward"))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if phase != "callback holds":
                pressure.release()
            if faulty and batch == self.step and phase == "callback holds":
                pressure.leave(3 << 20)
            if faulty and batch == self.step and phase == "callback fails":
                tf.zeros((1 << 30,), tf.uint8)

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begin(batch, phase == "evaluation")

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            pressure.release()

        def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begin(batch, phase == "prediction")

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            pressure.release()

    return Fault()


def problems(phase: str, when: str, how: str) -> list[str]:
    """Train with the fault and without it; what is not as it has to be."""
    faulty = run_limited(train, LIMIT, phase=phase, when=when, how=how, faulty=True)
    # XLA is off after an error, so what is compared with runs without it, and within rounding.
    roomy = run_limited(
        train,
        "512MiB",
        phase=phase,
        when=when,
        how="graph" if how == "graph" else "without XLA",
        faulty=False,
        replay=faulty.get("run"),
    )
    found = [*_problems_of_errors(phase, when, how, faulty), *_problems_of_values(phase, how, faulty, roomy)]
    if not all(faulty["unchanged"]):
        found.append("a variable had changed before the commit")
    expected = [0.0] if phase == "prediction" else [1.0]
    if faulty["seen"] != expected:
        found.append(f"samples were seen {faulty['seen']} times")
    return found


def _problems_of_errors(phase: str, when: str, how: str, faulty: dict[str, Any]) -> list[str]:
    ooms, step = faulty["run"]["ooms"], 0 if when == "first" else 3
    if phase in ("slots", "callback fails"):
        expected = "DoesNotFit" if phase == "slots" else "ResourceExhaustedError"
        kept = faulty.get("kept", True) and faulty.get("iterations", step + 1) == step + 1
        return [] if faulty["raised"] == [expected] and kept else [f"raised {faulty['raised']}, kept {kept}"]
    if not ooms:
        return ["nothing ran out"]
    phases = {"evaluation": "evaluation", "prediction": "prediction", "commit": "commit"}
    if {oom["phase"] for oom in ooms} != {phases.get(phase, "gradients")}:
        return [f"it ran out in {[oom['phase'] for oom in ooms]}"]
    in_gradients = "gradient" in (ooms[0]["error"]["op"] or "")
    if how == "graph" and (
        (phase == "forward" and in_gradients) or (phase == "backward" and not in_gradients)
    ):
        return [f"it ran out in {ooms[0]['error']['op']}"]
    expected_step = {"evaluation": STEPS, "prediction": 0, "callback holds": step + 1}.get(phase, step)
    return [] if ooms[0]["step"] == expected_step else [f"it ran out in step {ooms[0]['step']}"]


def _problems_of_values(phase: str, how: str, faulty: dict[str, Any], roomy: dict[str, Any]) -> list[str]:
    if how == "graph" and phase not in ("evaluation", "prediction"):
        return [] if faulty["digest"] == roomy["digest"] else ["values differ"]
    pairs = [
        *zip(faulty["sums"], roomy["sums"], strict=True),
        *zip(faulty.get("outputs", ()), roomy.get("outputs", ()), strict=True),
        *((value, roomy["logs"][name][0]) for name, (value,) in faulty.get("logs", {}).items()),
    ]
    wrong = [(a, b) for a, b in pairs if abs(a - b) > 1e-4 * max(1.0, abs(b))]
    return [f"values differ: {wrong}"] if wrong else []
