"""Super-resolution training, in the style of our internal framework."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import sys
import typing as t

import numpy as np
import tensorflow as tf

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainConfig:
    batch_size: int = 32
    epochs: int = 2
    steps_per_epoch: int = 3
    learning_rate: float = 1e-3
    upscale: int = 2
    channels: int = 32
    workdir: str = "work"

    def dump(self, path: pathlib.Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2))


class PSNR(tf.keras.metrics.Metric):
    def __init__(self, name: str = "psnr", **kwargs: t.Any) -> None:
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = tf.image.psnr(y_true, y_pred, max_val=1.0)
        self.total.assign_add(tf.reduce_sum(values))
        self.count.assign_add(tf.cast(tf.size(values), tf.float32))

    def result(self):
        return tf.math.divide_no_nan(self.total, self.count)


class SuperResolution(tf.keras.Model):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        c = config.channels
        conv = lambda f, k: tf.keras.layers.Conv2D(f, k, padding="same", activation="relu")
        self.head = conv(c, 5)
        self.body = [conv(c, 3) for _ in range(3)]
        self.tail = tf.keras.layers.Conv2D(3 * config.upscale**2, 3, padding="same")
        self.upscale = config.upscale

    def call(self, inputs, training=None):
        x = skip = self.head(inputs)
        for layer in self.body:
            x = layer(x)
        return tf.nn.depth_to_space(self.tail(x + skip), self.upscale)

    def train_step(self, data):
        low, high = data
        with tf.GradientTape() as tape:
            pred = self(low, training=True)
            loss = self.compute_loss(x=low, y=high, y_pred=pred)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(high, pred)
        return {m.name: m.result() for m in self.metrics}


class Trainer:
    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.workdir = pathlib.Path(config.workdir)
        self.workdir.mkdir(exist_ok=True)
        config.dump(self.workdir / "config.json")
        tf.keras.utils.set_random_seed(0)
        self.model = SuperResolution(config)

    def dataset(self) -> tf.data.Dataset:
        high = np.random.default_rng(5).random((192, 96, 96, 3), dtype="float32")

        def degrade(image):
            return tf.image.resize(image, (48, 48), antialias=True), image

        ds = tf.data.Dataset.from_generator(lambda: iter(high), output_signature=tf.TensorSpec((96, 96, 3)))
        return ds.repeat().map(degrade).batch(self.config.batch_size).prefetch(1)

    def run(self) -> dict[str, float]:
        self.model.compile(
            optimizer=tf.keras.optimizers.Adam(self.config.learning_rate, global_clipnorm=0.1),
            loss=tf.keras.losses.MeanAbsoluteError(),
            metrics=[PSNR()],
        )
        log_path = self.workdir / "history.csv"
        history = self.model.fit(
            self.dataset(),
            epochs=self.config.epochs,
            steps_per_epoch=self.config.steps_per_epoch,
            callbacks=[tf.keras.callbacks.CSVLogger(str(log_path))],
            verbose=0,
        )
        logger.info("wrote %s", log_path)
        return {k: v[-1] for k, v in history.history.items()}


def main(argv: t.Sequence[str]) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="[%(levelname).1s] %(name)s - %(message)s")
    config = TrainConfig(**dict(kv.split("=") for kv in argv))  # type: ignore[arg-type]
    print(Trainer(config).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
