"""The data of one training: what its pipelines hold; where it is; and taken again up to there, untrained.

TensorFlow gives half of the memory that is free to the buffers whose size it may choose. That is more than a
training can spare, so they get less here; a budget that the script has set stays.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.core.errors import CannotResume
from memfit.core.units import format_size
from memfit.data.inspect.check import check
from memfit.data.inspect.pipeline_findings import Finding
from memfit.guarding.arrays_on_host import reads_from_host
from memfit.guarding.protection import Protection
from memfit.guarding.step.batches import Batch
from memfit.machine import first_device, host_memory, limit_in_force
from memfit.model.training_data import samples_of
from memfit.private.keras.trainer import epoch_iterators
from memfit.running.checkpoints.format import Array
from memfit.running.checkpoints.store import ChildContext
from memfit.running.checkpoints.training_state import PipelineStates, Progress, has_state, put_back_pipeline
from memfit.running.journal.events import DataEvent
from memfit.running.journal.run_folder import tell

_SAMPLE_BYTES = 1 << 12  # of each array of a batch: enough to tell one batch from another
_OF_ITERATOR = ("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight")


@dataclass(frozen=True)
class Position:
    """Epochs that are over, and batches of the next one that were trained on."""

    epochs: int = 0
    batches: int = 0


class TrainingData:
    """The batches of one training: those of before are taken again, then `before_step` is called for each."""

    def __init__(
        self,
        model: Any,
        given: dict[str, Any],
        before_step: Callable[[Position], None],
        no_step: Callable[[], None],
    ) -> None:
        """`no_step` is called where the data had no batch for the step that was announced."""
        self.position = Position()  # where it was
        self.pipeline: dict[str, Array] | None = None  # the state that it had there, where that is known
        self.protection: Protection | None = None
        self.sample: Any = None  # of the first batch
        self.first_batch: int | None = None  # digests
        self.last_batch: int | None = None
        self._model, self._given, self._before_step = model, given, before_step
        self.no_step = no_step
        self._now = Position()
        self._iterator: Any = None

    def iterator(self, kind: type[Any], **options: Any) -> Any:
        """Keras' iterator over epochs, of its own kind; it first takes what was trained on before."""
        self._iterator = self._made(kind, **options)
        return self._iterator

    def _made(self, kind: type[Any], **options: Any) -> Any:
        made: Any = type("Replaying", (_Replaying, kind), {})(**options)
        made.data, made.next_epoch = self, self.position.epochs
        made._states = PipelineStates()
        made._is_open_ended = options.get("steps_per_epoch") is not None  # an iterator outlives its epoch
        return made

    def go_on_from(self, progress: Progress, arrays: dict[str, Array]) -> None:
        """Know where it was; nothing is taken yet."""
        self.position = Position(*progress.position)
        self.pipeline = arrays if has_state(arrays) else None
        self.first_batch = self.last_batch = self.sample = None

    def state(self) -> dict[str, Array]:
        """The state of the pipeline, as arrays; nothing where only taking all data again leads there."""
        return {} if self._iterator is None else self._iterator.state()

    def saw(self, batch: Batch, *, is_due: bool) -> None:
        """A batch is about to be trained on; it is looked at if a checkpoint is due."""
        if self.first_batch is None or is_due:
            self._look_at(batch)
        else:
            self.last_batch = None

    def took(self, element: Any) -> None:
        """A batch was taken that was trained on before."""
        batch = None if self.protection is None else self.protection.batch_of(element)
        if batch is not None:
            self._look_at(batch)
        if self.sample is None:
            self.sample = element if batch is None else batch.part(0, 1)

    def _look_at(self, batch: Batch) -> None:
        self.last_batch = digest(batch)
        if self.first_batch is None:
            self.first_batch = self.last_batch

    def before_step(self, position: Position) -> None:
        """The next batch is a new one."""
        self._now = position
        self._before_step(position)

    def end(self) -> Position:
        """The epochs and batches that a training has taken by its end."""
        if self._iterator is None:
            return self._now
        taken = self._now.batches + self._iterator.steps_per_execution
        length = self._iterator.num_batches
        if self._model.stop_training and (length is None or taken < length):
            return Position(self._now.epochs, taken)
        return Position(self._now.epochs + 1, 0)

    def check_same(self, progress: Progress, number: int) -> None:
        """Raise unless the batches that were taken again are those of before, as far as is known."""
        last = self.last_batch if self.pipeline is None else None
        for which, was, seen in (
            ("first batch", progress.first_batch, self.first_batch),
            ("last batch", progress.last_batch, last),
        ):
            if was is not None and seen is not None and was != seen:
                raise CannotResume(
                    f"the {which} of training {number} is not the one of before",
                    expected="the same data in the same order; generators of random numbers other than "
                    "Python's, NumPy's and TensorFlow's global ones need a seed",
                    received=f"other samples (checksum {seen:08x}, was {was:08x})",
                )

    def take_all_again(self) -> None:
        """Be where a training left it that is over; arrays do not remember where they are."""
        samples = samples_of(self._given, 1)
        if samples is not None:
            self.took(keras.tree.map_structure(tf.convert_to_tensor, _as_batch(samples)))
            return
        options = {name: self._given.get(name) for name in _OF_ITERATOR}
        iterator = self._made(
            epoch_iterators(),
            **options,
            shuffle=self._given.get("shuffle", True),
            distribute_strategy=self._model.distribute_strategy,
            steps_per_execution=self._model.steps_per_execution,
        )
        iterator.reset()
        iterator.take_the_rest()


class _Replaying:
    """In front of Keras' own iterator, which is as ever until it is reset: `fit` does so before it begins."""

    data: TrainingData
    next_epoch: int
    _states: PipelineStates
    _is_open_ended: bool
    is_new = False  # whether what comes was not trained on before
    _running: Any = None

    def reset(self: Any) -> None:
        """Take all epochs again that are over."""
        self.is_new = False
        super().reset()  # type: ignore[misc]
        if self.data.pipeline is not None:
            self._take(iter(self._get_iterator()), 1)  # to see whether it is the same data
        else:
            self._take_epochs(self.data.position.epochs)
        self.is_new = True

    def state(self) -> dict[str, Array]:
        """The state of the pipeline, as arrays; nothing where only taking all data again leads there."""
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
        if self.data.pipeline is not None:
            put_back_pipeline(iter(self._get_iterator()), self.data.pipeline)
        elif self.data.position.batches:
            for begin, end, iterator in super()._enumerate_iterator():  # type: ignore[misc]
                self._take(iterator, 1 + end - begin)
                if end + 1 >= self.data.position.batches:
                    return

    def _enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        steps = super()._enumerate_iterator()  # type: ignore[misc]
        if not self.is_new:
            yield from steps
            return
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        where = self.data.position
        known, pipeline = (where.batches, self.data.pipeline) if epoch == where.epochs else (0, None)
        for begin, end, iterator in steps:
            if pipeline is None and begin < known:
                self._take(iterator, 1 + end - begin)
            if begin < known:
                continue
            if pipeline is not None:
                put_back_pipeline(iterator, pipeline)
                pipeline = None
            self._running = iterator
            self.data.before_step(Position(epoch, begin))
            yield begin, end, iterator

    @contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """As Keras does; where the length of an epoch is not known, its end comes instead of a batch."""
        with super().catch_stop_iteration():  # type: ignore[misc]
            try:
                yield
            except (StopIteration, tf.errors.OutOfRangeError):
                self.data.no_step()
                raise

    def _take(self, iterator: Any, count: int) -> None:
        for _ in range(count):
            try:
                element = next(iterator)
            except StopIteration:  # which a generator may not raise
                raise tf.errors.OutOfRangeError(None, None, "There are no more batches.") from None
            self.data.took(element)


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


def _as_batch(parts: Any) -> Any:
    """Samples as a step takes them."""
    return keras.utils.pack_x_y_sample_weight(*parts) if isinstance(parts, tuple) else parts


WARNED_OF = 0.25  # of the memory that is available
CAPPED_AT = 0.125  # of it
_PIPELINES = ("x", "validation_data")


class InputPipelines:
    """The pipelines of one training, as arguments of `fit`, with a cap on their buffers."""

    def __init__(self, context: ChildContext, number: int, given: dict[str, Any]) -> None:
        self._context, self._number = context, number
        self._is_looked_at = False
        self.pipelines = {
            name: given[name] for name in _PIPELINES if isinstance(given.get(name), tf.data.Dataset)
        }
        if self.pipelines:
            self._available_bytes = _available_bytes()
            self._cap(int(self._available_bytes * CAPPED_AT))

    def _cap(self, budget_bytes: int) -> None:
        for name, dataset in self.pipelines.items():
            try:
                self.pipelines[name] = _with_budget(dataset, budget_bytes)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self._say_why_not("capped", error)

    def look(self) -> None:
        """Say once what is large, and write down what there is."""
        if self._is_looked_at:
            return
        self._is_looked_at = True
        for name, dataset in self.pipelines.items():
            try:
                self._look_at(name, dataset)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self._say_why_not("checked", error)

    def _look_at(self, name: str, dataset: Any) -> None:
        seen, available_bytes = check(dataset), self._available_bytes
        kept = {"array"} if reads_from_host(dataset) else set[str]()
        findings = [one for one in seen.findings if one.kind not in kept]
        large = [one for one in findings if _most_bytes(one) > WARNED_OF * available_bytes]
        self._context.journal.write(
            DataEvent(
                self._number,
                argument=name,
                check=seen.to_dict(),
                available_bytes=available_bytes,
                warnings=tuple(map(str, large)),
            )
        )
        for one in large:
            words = str(one).replace("\n", "\n  ")
            tell(
                f"The data of training {self._number} ({name}) may hold more than {WARNED_OF:.0%} of the "
                f"{format_size(available_bytes)} that are available.\n  {words}"
            )

    def _say_why_not(self, what: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self._context.journal.write(DataEvent(self._number, reason=reason))
        tell(f"The data of training {self._number} could not be {what}: {reason}")


def _available_bytes() -> int:
    """The memory that pipelines and training share: that of the host, less where a limit is on the CPU."""
    available_bytes = host_memory().usable_available_bytes
    limit_bytes = limit_in_force() if first_device() == "CPU:0" else None
    return available_bytes if limit_bytes is None else min(available_bytes, limit_bytes)


def _with_budget(dataset: Any, budget_bytes: int) -> Any:
    if dataset.options().autotune.ram_budget:
        return dataset
    options = tf.data.Options()
    options.autotune.ram_budget = budget_bytes
    return dataset.with_options(options)


def _most_bytes(finding: Finding) -> int:
    """As far as it is known."""
    return max(finding.held_bytes or 0, finding.most_bytes or 0)
