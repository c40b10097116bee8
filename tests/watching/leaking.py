"""Programs that leak, each at a line that is marked, and programs that do not."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import memfit


def line_of(name: str) -> str:
    """The line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# leak: {name}")]
    return f"watching/leaking.py:{number}"


def small_model(width: int = 8) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


MORE = np.ones((250, 4), "float32")
X, Y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")


def models(watch: Any) -> None:
    for _ in range(4):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])  # leak: models
        model.compile("adam", "mse", jit_compile=False)
        model.train_on_batch(X, Y)
        keras.backend.clear_session()
        watch.step()


def own_steps(watch: Any) -> None:
    for _ in range(5):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])  # leak: own_steps
        _train(model)
        watch.step()


def _train(model: Any) -> None:
    optimizer = keras.optimizers.Adam()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - Y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    step()


def scalars(watch: Any) -> None:
    @tf.function
    def scaled(factor: Any) -> Any:
        return tf.reduce_sum(tf.ones((4, 4)) * factor)

    for number in range(8):
        scaled(number)  # leak: scalars
        watch.step()


def shapes(watch: Any) -> None:
    summed = tf.function(lambda rows: tf.reduce_sum(rows) * 2.0)
    for number in range(12):
        summed(tf.ones((number + 1, 4)))  # leak: shapes
        watch.step()


def generators(watch: Any) -> None:
    for _ in range(5):
        array = np.ones((256, 1024), "float32")
        spec = tf.TensorSpec((1024,), "float32")
        rows = functools.partial(iter, array)
        dataset = tf.data.Dataset.from_generator(rows, output_signature=spec)  # leak: generators
        next(iter(dataset))
        watch.step()


def py_functions(watch: Any) -> None:
    for _ in range(5):
        array = np.ones((1024,), "float32")

        def read(index: Any, array: Any = array) -> Any:
            return tf.py_function(lambda at: array[at], [index], tf.float32)  # leak: py_functions

        next(iter(tf.data.Dataset.range(4).map(read)))
        watch.step()


def numpy_functions(watch: Any) -> None:
    def reader(array: Any) -> Any:
        @tf.function
        def read() -> Any:
            return tf.numpy_function(lambda: array, [], tf.float32)  # leak: numpy_functions

        return read

    for _ in range(5):
        reader(np.ones((1024,), "float32"))()
        watch.step()


def losses(watch: Any) -> None:
    model, kept = small_model(), []
    for _ in range(64):
        loss = tf.reduce_mean(model(X))
        kept.append(loss)  # leak: losses
        watch.step()


class Trainer:
    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {"loss": []}

    def train(self, watch: Any) -> None:
        for number in range(64):
            value = tf.constant(float(number))
            self.history["loss"].append({"value": value})  # leak: attributes
            watch.step()


def attributes(watch: Any) -> None:
    Trainer().train(watch)


def passed_on(watch: Any) -> None:
    kept: list[Any] = []
    for number in range(64):
        _keep(kept, tf.constant(float(number)))  # leak: passed_on
        watch.step()


def _keep(store: list[Any], value: Any) -> None:
    store.append(value)


def tapes(watch: Any) -> None:
    weights, kept = tf.Variable(tf.ones((4, 1))), []
    for _ in range(64):
        with tf.GradientTape(persistent=True) as tape:
            tf.reduce_mean(X @ weights)
        kept += [tape]  # leak: tapes
        watch.step()


def slices(watch: Any) -> None:
    array = np.ones((20, 1 << 20), "uint8")
    dataset = tf.data.Dataset.from_tensor_slices(array).batch(4)  # leak: slices
    for _ in dataset:
        watch.step()


def constants(watch: Any) -> None:
    array = np.ones((20, 1 << 20), "uint8")

    @tf.function
    def row(index: Any) -> Any:
        if index > 2:
            return tf.constant(array)[index]  # leak: constants
        return tf.zeros((1 << 20,), tf.uint8)

    for number in range(4):
        row(tf.constant(number))
        watch.step()


def fits(watch: Any) -> None:
    small_model().fit(MORE, MORE[:, :1], batch_size=1, epochs=2, verbose=0, callbacks=[watch])


def floats(watch: Any) -> None:
    model, optimizer, kept = small_model(), keras.optimizers.Adam(), []

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    last: list[Any] = []
    for _ in range(500):
        loss = step(X, Y)
        kept.append(float(loss))
        last = [*last[-9:], loss]
        watch.step()


def predictions(watch: Any) -> None:
    model = small_model()
    for number in range(500):
        model.predict_on_batch(X[: 16 + 16 * (number % 2)])
        watch.step()


def validated(watch: Any) -> None:
    class Kept(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append(logs["loss"])

    callbacks = [watch, Kept(), keras.callbacks.EarlyStopping(patience=100)]
    small_model().fit(
        MORE, MORE[:, :1], batch_size=1, epochs=2, verbose=0, validation_data=(X, Y), callbacks=callbacks
    )


def one_generator(watch: Any) -> None:
    def rows() -> Any:
        for _ in range(500):
            yield X[0], Y[0]

    signature = (tf.TensorSpec((4,), "float32"), tf.TensorSpec((1,), "float32"))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(2)
    small_model().fit(dataset, epochs=2, verbose=0, callbacks=[watch])


def two_models(watch: Any) -> None:
    kept = [small_model(width) for width in (4, 8)]
    batches = [tf.constant(X) for _ in range(50)]
    for number in range(500):
        kept[number % 2].train_on_batch(batches[number % 50], Y)
        watch.step()


def released(watch: Any) -> None:
    for _ in range(5):
        model = small_model()
        model.fit(X, Y, verbose=0)
        memfit.release(model)
        watch.step()
