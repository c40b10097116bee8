"""Small models with data of every kind that `fit` takes, for tests of resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

COUNT, BATCH = 40, 8


def make(kind: str) -> tuple[Any, dict[str, Any]]:
    """A compiled model, and what its `fit` is given."""
    import keras

    keras.utils.set_random_seed(3)
    return _MODELS.get(kind, _model)(), _DATA[kind]()


def _model(**options: Any) -> Any:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.25),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


def _unbuilt() -> Any:
    import keras
    from keras import layers

    model = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dropout(0.5), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def _own_loss() -> Any:
    """A step of its own, whose logs are not Keras'."""
    import keras
    import tensorflow as tf

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.mean = keras.metrics.Mean("error")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            slopes = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
            self.mean.update_state(loss)
            return {"loss": self.mean.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.mean]

    model = Model()
    model.compile("rmsprop")
    return model


def _samples() -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(1).random((COUNT, 6), "float32")
    return x, x[:, :2] * 3


def _arrays() -> dict[str, Any]:
    x, y = _samples()
    return {"x": x, "y": y, "batch_size": BATCH, "validation_split": 0.2}


def _dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_samples()).shuffle(COUNT)


def _of_unknown_length() -> dict[str, Any]:
    return {"x": _dataset().filter(lambda x, y: x[0] > 0.1).batch(BATCH).prefetch(2)}


def _shards() -> dict[str, Any]:
    """One pass over the data goes on through several epochs."""
    return {"x": _dataset().batch(BATCH).repeat(), "steps_per_epoch": 4}


def _py_dataset(**options: Any) -> dict[str, Any]:
    import keras
    import numpy as np

    x, y = _samples()

    class Shuffled(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__(**options)
            self.order = np.arange(COUNT)

        def __len__(self) -> int:
            return COUNT // BATCH

        def __getitem__(self, place: int) -> Any:
            rows = self.order[place * BATCH : (place + 1) * BATCH]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            np.random.shuffle(self.order)

    return {"x": Shuffled(), "shuffle": True}


def _generator(seed: int | None = 7) -> dict[str, Any]:
    import numpy as np

    x, y = _samples()
    draw = np.random.default_rng(seed)

    def batches() -> Iterator[Any]:
        while True:
            rows = draw.integers(0, COUNT, BATCH)
            yield x[rows], y[rows]

    return {"x": batches(), "steps_per_epoch": 5}


def _global_numbers() -> dict[str, Any]:
    import numpy as np

    x, y = _samples()

    def batches() -> Iterator[Any]:
        while True:
            rows = np.random.randint(0, COUNT, BATCH)
            yield x[rows], y[rows]

    return {"x": batches(), "steps_per_epoch": 5}


_MODELS: dict[str, Callable[[], Any]] = {
    "model that is built by its data": _unbuilt,
    "loss of its own": _own_loss,
    "several steps at once": lambda: _model(steps_per_execution=2),
}
_DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": _arrays,
    "dataset": lambda: {"x": _dataset().batch(BATCH)},
    "dataset of unknown length": _of_unknown_length,
    "shards": _shards,
    "PyDataset": _py_dataset,
    "PyDataset with workers": lambda: _py_dataset(workers=2),
    "generator": _generator,
    "generator without a seed": lambda: _generator(None),
    "generator with NumPy's own numbers": _global_numbers,
    "several steps at once": lambda: {**_arrays(), "validation_split": 0.0},
    "model that is built by its data": lambda: {"x": _dataset().batch(BATCH)},
    "loss of its own": lambda: {**_arrays(), "validation_split": 0.0},
}
