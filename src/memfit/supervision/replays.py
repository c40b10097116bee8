"""Where a training is in its data; and data taken again up to there, batch by batch, untrained."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from memfit.runs.batches import Batch
from memfit.supervision import pipelines
from memfit.supervision.files import Array

_SAMPLE_BYTES = 1 << 12  # of each array of a batch: enough to tell one batch from another


@dataclass(frozen=True)
class Position:
    """Epochs that are over, and batches of the next one that were trained on."""

    epochs: int = 0
    batches: int = 0


class Replay(Protocol):
    """What is done around the batches of a training."""

    position: Position  # where it was
    pipeline: dict[str, Array] | None  # the state that its data had there, where that is known

    def took(self, element: Any) -> None:
        """A batch was taken that was trained on before."""
        ...

    def before_step(self, position: Position) -> None:
        """The next batch is a new one."""
        ...


def replaying(replay: Replay, kind: type[Any], **options: Any) -> Any:
    """Keras' iterator over epochs, of its own kind; it first takes what was trained on before."""
    made: Any = type("Replaying", (_Replaying, kind), {})(**options)
    made.replay, made.next_epoch = replay, replay.position.epochs
    made._states = pipelines.PipelineStates()
    made._is_open_ended = options.get("steps_per_epoch") is not None  # an iterator outlives its epoch
    return made


class _Replaying:
    """In front of Keras' own iterator, which is as ever until it is reset: `fit` does so before it begins."""

    replay: Replay
    next_epoch: int
    _states: pipelines.PipelineStates
    _is_open_ended: bool
    is_new = False  # whether what comes was not trained on before
    _running: Any = None

    def reset(self: Any) -> None:
        """Take all epochs again that are over."""
        self.is_new = False
        super().reset()  # type: ignore[misc]
        if self.replay.pipeline is not None:
            self._take(iter(self._get_iterator()), 1)  # to see whether it is the same data
        else:
            self._take_epochs(self.replay.position.epochs)
        self.is_new = True

    def state(self) -> dict[str, Array]:
        """Where the data is, as arrays; nothing where only taking all of it again leads there."""
        if self._is_open_ended or self._running is None:
            return {}
        return self._states.take(self._running)

    def _take_epochs(self: Any, count: int) -> None:
        for _ in range(count):
            with self.catch_stop_iteration():
                for begin, end, iterator in self:
                    self._take(iterator, 1 + end - begin)

    def take_the_rest(self: Any) -> None:
        """Be where a training left its data that is over, maybe in the middle of an epoch."""
        if self.replay.pipeline is not None:
            pipelines.put_back(iter(self._get_iterator()), self.replay.pipeline)
        elif self.replay.position.batches:
            for begin, end, iterator in super()._enumerate_iterator():  # type: ignore[misc]
                self._take(iterator, 1 + end - begin)
                if end + 1 >= self.replay.position.batches:
                    return

    def _enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        steps = super()._enumerate_iterator()  # type: ignore[misc]
        if not self.is_new:
            yield from steps
            return
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        where = self.replay.position
        known, pipeline = (where.batches, self.replay.pipeline) if epoch == where.epochs else (0, None)
        for begin, end, iterator in steps:
            if pipeline is None and begin < known:
                self._take(iterator, 1 + end - begin)
            if begin < known:
                continue
            if pipeline is not None:
                pipelines.put_back(iterator, pipeline)
                pipeline = None
            self._running = iterator
            self.replay.before_step(Position(epoch, begin))
            yield begin, end, iterator

    def _take(self, iterator: Any, count: int) -> None:
        for _ in range(count):
            try:
                element = next(iterator)
            except StopIteration:  # which a generator may not raise
                raise tf.errors.OutOfRangeError(None, None, "There are no more batches.") from None
            self.replay.took(element)


def digest(batch: Batch) -> int:
    """A number that is another one for other samples, as far as the first of them tells."""
    found = zlib.crc32(str(batch.size).encode())
    for leaf in keras.tree.flatten(batch.part(0, 1)):
        if leaf is None:
            continue
        dense = leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf
        dense = tf.sparse.to_dense(dense) if isinstance(dense, tf.SparseTensor) else dense
        array = np.asarray(dense)
        if array.dtype.kind == "O":
            found = zlib.crc32(repr(array.tolist()).encode(), found)
            continue
        found = zlib.crc32(f"{array.dtype.name} {array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:_SAMPLE_BYTES].data, found)
    return found
