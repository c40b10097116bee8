"""Scripts that really run out of memory, each in its own way, and what is known of each."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.records import Cause


@dataclass(frozen=True)
class Script:
    """A training, the limit it runs out of, and what a diagnosis has to find."""

    code: str
    limit: str
    cause: Cause
    op: str | None = None  # a part of its name
    shape: tuple[int, ...] | None = None
    line: int | None = None


SCRIPTS = {
    "activations": Script(
        """import keras, numpy as np

model = keras.Sequential([
    keras.Input((48, 48, 3)),
    keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(1),
])
model.compile("sgd", "mse")
batch = np.ones((96, 48, 48, 3), "float32"), np.ones((96, 1), "float32")
print(model.train_on_batch(*batch))
""",
        "90MiB",
        "activations",
        op="sequential",
        shape=(96, 48, 48, 64),
        line=11,
    ),
    "weights": Script(
        """import keras

inputs = keras.Input((5000,))
outputs = keras.layers.Dense(5000)(inputs)
""",
        "80MiB",
        "weights",
        op="StatelessRandomUniform",
        shape=(5000, 5000),
        line=4,
    ),
    "optimizer": Script(
        """import keras

model = keras.Sequential([keras.Input((2500,)), *[keras.layers.Dense(2500) for _ in range(3)]])
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
""",
        "160MiB",
        "weights",
        shape=(2500, 2500),
        line=5,
    ),
    "data": Script(
        """import tensorflow as tf, numpy as np

images = tf.constant(np.ones((6000, 40, 40, 3), "float32"))
filters = tf.ones((3, 3, 3, 64))
for start in range(0, 6000, 40):
    print(tf.nn.conv2d(images[start : start + 40], filters, 1, "SAME").shape)
""",
        "140MiB",
        "data_on_device",
        op="Conv2D",
        shape=(40, 40, 40, 64),
        line=6,
    ),
    "gaps": Script(
        """import tensorflow as tf

blocks = [tf.zeros((1024, 1024)) for _ in range(20)]
blocks = blocks[::2]
large = tf.zeros((6, 1024, 1024))
""",
        "90MiB",
        "fragmentation",
        op="Fill",
        shape=(6, 1024, 1024),
        line=5,
    ),
    "xla": Script(
        """import tensorflow as tf


@tf.function(jit_compile=True)
def step(x):
    y = tf.matmul(x, x, transpose_b=True)
    return tf.reduce_sum(tf.sort(tf.nn.softmax(y)) * y)


print(step(tf.ones((4096, 16))))
""",
        "60MiB",
        "activations",
        op="step",
        line=10,
    ),
    "host": Script(
        """import numpy as np, tensorflow as tf


def load(index):
    return np.ones((2**45, 3))


dataset = tf.data.Dataset.range(4).map(lambda index: tf.numpy_function(load, [index], tf.float64))
for element in dataset:
    print(element)
""",
        "60MiB",
        "host_memory",
        op="PyFunc",
        shape=(2**45, 3),
        line=5,
    ),
    "leak": Script(
        """import sys

import tensorflow as tf

weights, losses = tf.ones((400, 400)), []
for step in range(1000):
    print("step", step, file=sys.stderr, flush=True)
    losses.append(tf.matmul(weights, weights))
""",
        "60MiB",
        "leak",
        op="MatMul",
        shape=(400, 400),
        line=8,
    ),
    "other": Script(
        """import keras

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.fit([1, 2, 3])
""",
        "60MiB",
        "not_an_oom",
    ),
}
