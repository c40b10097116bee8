"""tf.data pipelines that hold more than they have to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import last_name
from memfit.linting.pipelines_in_code import Pipeline, argument, decodes, number, pipeline_of, steps_called
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.values import Values

_FEW_ELEMENTS = 64
_FEW_BATCHES = 10
_MANY_BATCHES = 16


def shuffle_after_decode(values: Values) -> Iterator[Hit]:
    """A shuffle buffer of single decoded elements."""
    for call, before in steps_called(values, "shuffle"):
        decoder = decodes(values, before)
        if decoder is not None and not before.is_batched and not _is_at_most(call, _FEW_ELEMENTS):
            yield Hit(call, f"{shown(_function(decoder), 30)}")


def _function(step: ast.Call) -> ast.AST:
    return (
        step.args[0]
        if isinstance(step.func, ast.Attribute) and step.func.attr == "map" and step.args
        else step.func
    )


def _is_at_most(call: ast.Call, limit: int) -> bool:
    size = number(argument(call, 0, "buffer_size"))
    return size is not None and size <= limit


def shuffle_after_batch(values: Values) -> Iterator[Hit]:
    """A shuffle buffer of batches."""
    for call, before in steps_called(values, "shuffle"):
        if before.is_batched and not _is_at_most(call, _FEW_BATCHES):
            size = argument(call, 0, "buffer_size")
            yield Hit(call, shown(size) if size is not None else "all")


def cache_in_memory(values: Values) -> Iterator[Hit]:
    """`cache()` without a file, of decoded elements or of what a generator yields."""
    for call, before in steps_called(values, "cache"):
        is_generated = before.source_name.endswith(".from_generator")
        small = any(_is_at_most(step, 1000) for step in before.named("take"))
        if (
            (argument(call, 0, "filename") is None)
            and not small
            and (decodes(values, before) or is_generated)
        ):
            yield Hit(call, "cache()", is_sure=False)


def no_prefetch(values: Values) -> Iterator[Hit]:
    """A pipeline with a map that is trained on without a prefetch behind it."""
    for node in _consumed(values):
        pipeline = pipeline_of(values, node)
        if pipeline is not None and _could_wait(pipeline):
            last = max(pipeline.steps, key=lambda step: (step.end_lineno or 0, step.end_col_offset or 0))
            yield Hit(last, shown(node) if isinstance(node, ast.Name) else "the pipeline", is_sure=True)


def _could_wait(pipeline: Pipeline) -> bool:
    """Whether batches are made by a function while a step waits for them."""
    names = pipeline.names()
    is_read = pipeline.source_name.startswith("tensorflow.data.")
    return is_read and "map" in names and "prefetch" not in names and pipeline.is_batched


def _consumed(values: Values) -> Iterator[ast.expr]:
    for call in values.module.calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "fit"
            and not values.module.called(call)
        ):
            yield from call.args[:1]
            yield from (one.value for one in call.keywords if one.arg in ("x", "validation_data"))
    for loop in values.module.all(ast.For):
        over = loop.iter
        if (
            isinstance(over, ast.Call)
            and isinstance(over.func, ast.Name)
            and over.func.id == "enumerate"
            and over.args
        ):
            over = over.args[0]
        if _trains(values, loop):
            yield over


def _trains(values: Values, loop: ast.For) -> bool:
    for call in values.module.inside(loop, ast.Call):
        if values.module.called(call) == "tensorflow.GradientTape" or "train" in last_name(call):
            return True
    return False


def prefetch_many(values: Values) -> Iterator[Hit]:
    """Many batches that wait."""
    for call, before in steps_called(values, "prefetch"):
        size = number(argument(call, 0, "buffer_size"))
        if before.is_batched and size is not None and size >= _MANY_BATCHES:
            yield Hit(call, f"{size:g}")


RULES = (
    Rule(
        about(
            "MF005", "shuffle-after-decode", "warning",
            summary="shuffle behind the function that decodes",
            reason="A shuffle buffer holds its elements as they are there: 1,000 decoded images of 224 × "
            "224 pixels in float32 are 602 MB, 1,000 paths nearly nothing. The order is just as random.",
            fix="Shuffle the paths, then map.",
            before="""
                import tensorflow as tf

                def load(path):
                    return tf.io.decode_jpeg(tf.io.read_file(path))

                paths = tf.data.Dataset.list_files("photos/*.jpg")
                dataset = paths.map(load).shuffle(1000).batch(32).prefetch(2)
            """,
            after="""
                import tensorflow as tf

                def load(path):
                    return tf.io.decode_jpeg(tf.io.read_file(path))

                paths = tf.data.Dataset.list_files("photos/*.jpg")
                dataset = paths.shuffle(1000).map(load).batch(32).prefetch(2)
            """,
        ),
        "shuffle after {subject} holds decoded elements: 1,000 images of 224 × 224 in float32 are 602 MB, "
        "1,000 paths next to nothing",
        "",
        shuffle_after_decode,
    ),
    Rule(
        about(
            "MF006", "shuffle-after-batch", "warning",
            summary="shuffle behind batch",
            reason="A shuffle buffer counts elements, and behind batch an element is a whole batch: "
            "shuffle(1000) of batches of 32 holds 32,000 samples. Samples stay in the same batches in every "
            "epoch, too.",
            fix="Shuffle, then batch.",
            before="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").batch(32).shuffle(1000).prefetch(2)
            """,
            after="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").shuffle(1000).batch(32).prefetch(2)
            """,
        ),
        "shuffle({subject}) after batch counts batches, not samples: 1,000 batches of 32 are 32,000 samples "
        "in RAM",
        "",
        shuffle_after_batch,
    ),
    Rule(
        about(
            "MF007", "cache-in-memory", "note",
            summary="cache() of decoded data in memory",
            reason="cache() without a file keeps every element as it is there, decoded: 307 MB of decoded "
            "images took 1,367 MB of RAM, against 122 MB without it.",
            fix="Cache in front of the function that decodes, or to a file: cache(filename).",
            before="""
                import tensorflow as tf

                def load(path):
                    return tf.io.decode_jpeg(tf.io.read_file(path))

                paths = tf.data.Dataset.list_files("photos/*.jpg")
                dataset = paths.map(load).cache().batch(32).prefetch(2)
            """,
            after="""
                import tensorflow as tf

                def load(path):
                    return tf.io.decode_jpeg(tf.io.read_file(path))

                paths = tf.data.Dataset.list_files("photos/*.jpg")
                dataset = paths.map(load).cache("images").batch(32).prefetch(2)
            """,
        ),
        "{subject} keeps all decoded data in RAM, which may be too much (1,367 MB for images that took 122 "
        "MB without)",
        "",
        cache_in_memory,
    ),
    Rule(
        about(
            "MF008", "no-prefetch", "note",
            summary="A pipeline with a map and no prefetch",
            reason="Without prefetch the step waits while a batch is made, so people make up for it with "
            "larger batches and caches. A parallel map and a prefetch of a few batches gave 1,697 images a "
            "second instead of 779, for 20 MB of RAM.",
            fix="End the pipeline with prefetch(2), or with tf.data.AUTOTUNE.",
            before="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").map(parse).batch(32)
                model.fit(dataset)
            """,
            after="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").map(parse).batch(32).prefetch(2)
                model.fit(dataset)
            """,
        ),
        "{subject} has no prefetch, so each step may wait for its batch (779 against 1,697 images a second, "
        "for 20 MB of RAM)",
        "",
        no_prefetch,
    ),
    Rule(
        about(
            "MF028", "prefetch-many", "warning",
            summary="Many batches wait",
            reason="Each batch that waits is held decoded: prefetch(60) took 901 MB where a few batches "
            "took 122 MB.",
            fix="prefetch(2) is enough as a rule; tf.data.AUTOTUNE finds the number.",
            before="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").map(parse).batch(32).prefetch(60)
            """,
            after="""
                import tensorflow as tf

                dataset = tf.data.TFRecordDataset("train.tfrecord").map(parse).batch(32).prefetch(2)
            """,
        ),
        "prefetch({subject}) holds that many decoded batches: prefetch(60) took 901 MB where a few batches "
        "took 122 MB",
        "",
        prefetch_many,
    ),
)  # fmt: skip
