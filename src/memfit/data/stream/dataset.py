"""A stream -> a tf.data.Dataset that stays within its RAM: order, read, decode, batch, look for gaps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.data.stream.budget import READERS, Allotment
from memfit.data.stream.definition import Stream
from memfit.data.stream.options import Options
from memfit.data.stream.order import Order, as_written
from memfit.data.stream.sample_cache import keep
from memfit.data.stream.source import Spec, call, register, release_with
from memfit.data.stream.unreadable_samples import UnreadableSamples

_PLACE = Spec(tf.int64)


def open_stream(stream: Stream) -> Any:
    """The dataset of a stream."""
    stream = keep(stream) if stream.options.cache else stream
    allotment, order = stream.allotment(), stream.order
    unreadable = UnreadableSamples(stream.source, stream.decode, order, stream.options.on_error)
    is_whole = stream.decode is None and stream.options.on_error == "raise"
    reads = register(unreadable.read_all if is_whole else unreadable.read)
    reports = register(unreadable.report)
    if is_whole:
        seen = _whole_batches(stream, order, reads, allotment.parallel)
    else:
        seen = _looked_at(stream, order, _batches(stream, order, reads, allotment), reports)
    can_differ = order.start % order.length or stream.options.on_error == "skip"
    dataset = deliver(seen, stream.options, None if can_differ else order.length)
    dataset = dataset.prefetch(allotment.prefetch)
    for number in (reads, reports, *stream.registered):
        release_with(dataset, number)
    dataset.memfit_stream, dataset.memfit_losses = stream, unreadable
    return dataset


def _whole_batches(stream: Stream, order: Order, reads: int, parallel: int) -> Any:
    """The batches where nothing is decoded: reading raises what is wrong, so that nothing is missing."""
    specs, finish = (_PLACE, *stream.source.specs), stream.finish

    @as_written  # type: ignore[untyped-decorator]
    def read(_: Any, positions: Any, indices: Any) -> Any:
        return finish(*call(reads, specs, positions, indices)[1:])

    blocks = order.blocks(stream.options.block_size)
    return blocks.map(read, num_parallel_calls=parallel, deterministic=True)


def _batches(stream: Stream, order: Order, reads: int, allotment: Allotment) -> Any:
    """A dataset of (markers, positions, *parts) of batches; what cannot be read or decoded is missing."""
    specs = (_PLACE, *stream.source.specs)
    size, parallel = stream.options.block_size, allotment.parallel

    @as_written  # type: ignore[untyped-decorator]
    def read(markers: Any, positions: Any, indices: Any) -> tuple[Any, ...]:
        kept, *parts = call(reads, specs, positions, indices)
        return markers[: tf.size(kept)], kept, *parts

    readers = min(READERS, parallel)
    blocks = order.blocks(allotment.read).map(read, num_parallel_calls=readers, deterministic=True)
    decode = stream.decode
    if decode is None:  # a block that has lost elements is no batch, and one that has lost all is no end
        return blocks.unbatch().batch(size)

    @as_written  # type: ignore[untyped-decorator]
    def decoded(marker: Any, position: Any, *parts: Any) -> tuple[Any, ...]:
        return marker, position, *decode(*parts)

    elements = blocks.unbatch().map(decoded, num_parallel_calls=parallel, deterministic=True)
    augment = stream.augment
    if augment is None and stream.options.on_error == "raise":
        # TensorFlow decodes right into the batch. One that fails is missing as a whole, and so the end.
        return elements.batch(size).ignore_errors()
    elements = elements.ignore_errors()
    if augment is not None:
        elements = elements.map(
            lambda marker, position, image, *rest: (marker, position, augment(image), *rest),
            num_parallel_calls=parallel,
            deterministic=True,
        )
    return elements.batch(size)


def _looked_at(stream: Stream, order: Order, batches: Any, reports: int) -> Any:
    """The finished batches, each handed out only after its missing elements are reported."""
    finish = stream.finish

    @as_written  # type: ignore[untyped-decorator]
    def look(state: tuple[Any, Any], batch: tuple[Any, ...]) -> tuple[Any, Any]:
        markers, positions, *parts = batch  # no positions: the end of an epoch
        marker = tf.concat([markers, state[0][None]], 0)[0]
        begin = tf.where(state[1] < 0, order.first(marker), state[1])
        end = tf.concat([tf.constant([order.length - 1], tf.int64), positions], 0)[-1] + 1
        place, count = tf.stack([marker, begin, end]), tf.size(positions, tf.int64)
        is_whole = tf.equal(end - begin, count)
        if stream.options.on_error == "skip":  # skipped samples are logged at the end
            is_whole = tf.logical_and(is_whole, count > 0)
        end = tf.cond(is_whole, lambda: end, lambda: call(reports, (_PLACE,), positions, place)[0][0])
        with tf.control_dependencies([end]):
            return (marker, end), finish(*map(tf.identity, parts))

    state = (tf.constant(0, tf.int64), tf.constant(-1, tf.int64))
    seen = batches.concatenate(_empty_batch(batches)).scan(state, look)
    return seen.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] > 0)


def _empty_batch(batches: Any) -> Any:
    """A dataset of one batch without elements, which stands for the end of an epoch."""
    shapes = tf.nest.map_structure(
        lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), batches.element_spec
    )
    return tf.data.Dataset.from_tensors(shapes)


def deliver(batches: Any, options: Options, length: int | None) -> Any:
    """Batches as they were asked for; their number is known where all epochs have so many elements."""
    size = options.batch_size
    if size is None:
        batches, count = batches.unbatch(), length
    elif options.drop_remainder:
        batches = batches.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] == size)
        batches = batches.map(lambda *batch: _with_size(batch, size))
        count = None if length is None else length // size
    else:
        count = None if length is None else -(-length // size)
    if count is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return batches.with_options(tf_options())


def _with_size(batch: tuple[Any, ...], size: int) -> Any:
    found = tf.nest.map_structure(lambda part: tf.ensure_shape(part, (size, *part.shape[1:])), batch)
    return found if len(found) > 1 else found[0]


def tf_options() -> Any:
    """The options with which TensorFlow runs a stream."""
    options = tf.data.Options()
    options.deterministic = True
    # Nothing here is left to TensorFlow to tune. Its tuner looks ever more seldom, and an iterator that ends
    # often has to wait until it looks again: as long as the epoch took.
    options.autotune.enabled = False
    # TensorFlow would add a buffer of a size of its own choice.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options
