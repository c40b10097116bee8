"""The demo's rows, each a function that runs in a process of its own under a limit of its own."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from memfit.core.errors import DoesNotFit
from memfit.core.records import DemoRow, OutOfMemory
from memfit.machine import device_memory, is_oom, limit_in_force, load_keras, load_tensorflow, read_oom
from memfit.machine.child_process import Emit

IMAGE_SIZE = 128


def train_plain(name: str, images: int, batch_size: int, epochs: int, emit: Emit) -> dict[str, Any]:
    """Plain Keras, fed batch by batch so that it is the step that runs out, not a copy of the data."""
    began, history, error = time.perf_counter(), _Losses(emit), None
    model, batches = _build(), _feed(images, batch_size)
    try:
        model.fit(batches, **_arguments(epochs, history))
    except Exception as failure:
        if not is_oom(failure):
            raise
        error = read_oom(failure)
    return _row(name, history, began, micro_batch_size=batch_size, error=error)


def train_guarded(name: str, images: int, batch_size: int, epochs: int, emit: Emit) -> dict[str, Any]:
    """The same model, data and batch size under memfit, planned for the limit in force."""
    from memfit.api import fit

    logging.getLogger("memfit").addHandler(_Notes(emit))
    began, history = time.perf_counter(), _Losses(emit)
    model, pixels = _build(), draw_images(images, IMAGE_SIZE)
    try:
        arguments = {"batch_size": batch_size, "budget": limit_in_force(), **_arguments(epochs, history)}
        run = fit(model, pixels, pixels, **arguments).run
    except DoesNotFit as error:
        return {"does_not_fit": str(error), "limit_bytes": error.limit_bytes}
    row = _row(name, history, began, micro_batch_size=run.micro_batch_size, error=None)
    waited = sum(oom.seconds for oom in run.ooms)
    return {**row, "ooms_survived": len(run.ooms), "oom_seconds": waited}


def _arguments(epochs: int, history: _Losses) -> dict[str, Any]:
    return {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": [history.callback()]}


def _build() -> Any:
    """A convolutional autoencoder, compiled, with the same weights every time."""
    keras = load_keras()
    keras.utils.set_random_seed(7)
    layers = keras.layers
    pixels = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3))
    flow = pixels
    for filters in (16, 32, 64):
        flow = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(flow)
    for filters in (32, 16, 8):
        flow = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(flow)
    model = keras.Model(pixels, layers.Conv2D(3, 3, padding="same", activation="sigmoid")(flow))
    model.compile(keras.optimizers.Adam(2e-3), "mse", jit_compile=False)
    return model


def _feed(images: int, batch_size: int) -> Any:
    """One batch at a time from the host, its own target."""
    tensorflow = load_tensorflow()
    from memfit.guarding.step.batches import aligned_copy

    pixels = aligned_copy(draw_images(images, IMAGE_SIZE))
    batches = [pixels[start : start + batch_size] for start in range(0, images, batch_size)]
    signature = tensorflow.TensorSpec((None, *pixels.shape[1:]), tensorflow.float32)
    feed = tensorflow.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return feed.map(lambda batch: (batch, batch)).apply(
        tensorflow.data.experimental.assert_cardinality(len(batches))
    )


class _Losses:
    """The loss per epoch as it comes, told to the parent step by step."""

    def __init__(self, emit: Emit) -> None:
        self.per_epoch: list[float] = []
        self._emit = emit

    def callback(self) -> Any:
        return load_keras().callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self._emit({"step": True, "loss": float(logs["loss"])}),
            on_epoch_end=lambda epoch, logs: self.per_epoch.append(float(logs["loss"])),
        )


class _Notes(logging.Handler):
    """A log handler that passes memfit's messages on to the parent."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.INFO)
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit({"note": record.getMessage()})


def _row(
    name: Any, history: _Losses, began: float, *, micro_batch_size: int, error: OutOfMemory | None
) -> dict[str, Any]:
    row = DemoRow(
        name=name,
        oom=error is not None,
        peak_bytes=device_memory().peak_bytes,
        micro_batch_size=micro_batch_size,
        loss=tuple(history.per_epoch),
        seconds=time.perf_counter() - began,
        error=error,
    )
    return row.to_dict()


Images = np.ndarray[Any, np.dtype[np.float32]]


def draw_images(count: int, size: int, seed: int = 0) -> Images:
    """`count` images of `size` × `size` × 3 with values from 0 to 1."""
    random = np.random.default_rng(seed)
    axis = np.linspace(0, 1, size, dtype=np.float32)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    images = np.empty((count, size, size, 3), np.float32)
    for image in images:
        corner, opposite = random.random((2, 3), np.float32)
        image[:] = corner + (opposite - corner) * ((x + y) / 2)[..., None]
        for _ in range(4):
            _draw_disc(image, x, y, random)
    return images


def _draw_disc(image: Images, x: Images, y: Images, random: np.random.Generator) -> None:
    (center_x, center_y), radius = random.random(2, np.float32), 0.05 + 0.2 * random.random()
    distance = np.hypot(x - center_x, y - center_y)
    cover = np.clip((radius - distance) * 40 + 0.5, 0, 1, dtype=np.float32)[..., None]
    image += cover * (random.random(3, np.float32) - image)
