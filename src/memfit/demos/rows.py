"""The demo's rows, each a function that runs in a process of its own under a limit of its own."""

from __future__ import annotations

import logging
import time
from typing import Any

from memfit.demos.images import draw_images
from memfit.devices import device_memory, is_oom, load_keras, load_tensorflow, read_oom
from memfit.devices.children import Emit
from memfit.errors import DoesNotFit
from memfit.records import DemoRow, OutOfMemory

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
    """The same model, data and batch size under memfit."""
    from memfit.api import fit

    logging.getLogger("memfit").addHandler(_Notes(emit))
    began, history = time.perf_counter(), _Losses(emit)
    model, pixels = _build(), draw_images(images, IMAGE_SIZE)
    try:
        run = fit(model, pixels, pixels, batch_size=batch_size, **_arguments(epochs, history)).run
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
    from memfit.runs.aligned import aligned_copy

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
    """What memfit says, passed on to the parent."""

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
