"""The elements made from serialised records: bytes, a function's results, or parsed and decoded fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from memfit.core.errors import InvalidStream
from memfit.data.manifest import Pack
from memfit.data.reading.decoding import Decoder, make_decoder
from memfit.data.reading.oversized_images import guarded, measure_images
from memfit.data.reading.usual_images import look_at
from memfit.data.stream.budget import SampleSizes
from memfit.data.stream.definition import Decode, Finish
from memfit.data.stream.options import Options
from memfit.data.stream.source import Spec
from memfit.data.tfrecord.field_choice import Chosen, FieldChoice, choose
from memfit.data.tfrecord.schema import Field, find_fields, given_fields, pack_fields, read_examples

Features = Mapping[str, Any] | Callable[[Any], Any] | str | None


@dataclass(frozen=True)
class WantedFields:
    """The user's arguments about records and the elements to make of them."""

    features: Features
    x: Chosen
    y: Chosen
    size: tuple[int, int] | None
    channels: int
    dtype: str
    augment: Callable[[Any], Any] | None


@dataclass(frozen=True)
class RecordSamples:
    """Some records of a data set, and what is known of all."""

    records: Sequence[bytes]
    where: str
    pack: Pack | None
    held_bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class Layout:
    """The functions, specs and sizes by which records become elements."""

    decode: Decode | None
    specs: tuple[Spec, ...]
    finish: Finish
    sizes: SampleSizes
    augment: Callable[[Any], Any] | None = None
    registered: tuple[int, ...] = ()


def find_layout(wanted: WantedFields, samples: RecordSamples, options: Options) -> Layout:
    """The layout for the elements that the user wants of records."""
    features = wanted.features
    if features is None or isinstance(features, Mapping):
        return _parsed(wanted, samples, options)
    others = (wanted.x, wanted.y, wanted.size, wanted.augment)
    if any(other is not None for other in others) or not (features == "raw" or callable(features)):
        raise InvalidStream(
            "records cannot become that.",
            expected='features of a dict or None; or "raw" or a function, without x, y, size and augment',
            received="features={!r}, x={!r}, y={!r}, size={!r}, augment={!r}".format(features, *others),
            suggestion='features={"label": tf.io.FixedLenFeature((), tf.int64)}',
        )
    if callable(features):
        return _made_by(features, samples)
    sizes = _plain_sizes(samples, (Spec(tf.string),))
    return Layout(None, (Spec(tf.string),), lambda record: record, sizes)


def _made_by(function: Callable[[Any], Any], samples: RecordSamples) -> Layout:
    """The layout for a function of a record; its results for a few records give types and shapes."""
    made = [function(tf.constant(record)) for record in samples.records]
    shapes = {str(tf.nest.map_structure(lambda part: part.shape, element)) for element in made}
    if len(shapes) != 1:
        raise InvalidStream(
            "what features= makes of records cannot be batched.",
            expected="tensors of the same shapes for every record",
            received=" and ".join(sorted(shapes)[:2]) or f"no record of {samples.where} that can be read",
            suggestion="tf.ensure_shape, or pad to one length",
        )
    specs = tuple(Spec(part.dtype, tuple(part.shape)) for part in tf.nest.flatten(made[0]))
    return Layout(
        decode=lambda record: tuple(tf.nest.flatten(function(record))),
        specs=specs,
        finish=lambda *parts: tf.nest.pack_sequence_as(made[0], list(parts)),
        sizes=_plain_sizes(samples, specs),
    )


def _parsed(wanted: WantedFields, samples: RecordSamples, options: Options) -> Layout:
    examples = read_examples(samples.records, samples.where)
    choice = choose(_fields(wanted, samples, examples), wanted.x, wanted.y)
    if wanted.augment is not None and not choice.has_one_input:
        raise InvalidStream(
            "augment is a function of one x.",
            expected="the name of one feature as x",
            received=f"x={wanted.x!r}",
            suggestion="dataset.map(augment)",
        )
    images = [field for field in choice.fields if field.kind == "image"]
    if not images:
        specs = tuple(field.spec for field in choice.fields)
        sizes = _plain_sizes(samples, specs)
        return Layout(_decode(choice, None), specs, choice.build, sizes, wanted.augment)
    decoder = _decoder(wanted, images[0], examples)
    specs = tuple(field.handed_out(decoder) for field in choice.fields)
    sizes = _plain_sizes(samples, specs)
    seen = [look_at(_values(field, examples), decoder) for field in images]
    working_bytes = sum(measure_images(0, one, decoder, ()).working_bytes for one in seen)
    sizes = replace(sizes, working_bytes=sizes.working_bytes + working_bytes)
    decode, number = guarded(decoder, sizes, options, seen[0])
    return Layout(_decode(choice, decode), specs, choice.build, sizes, wanted.augment, (number,))


def _fields(wanted: WantedFields, samples: RecordSamples, examples: Sequence[Any]) -> list[Field]:
    features = wanted.features
    if isinstance(features, Mapping):
        return given_fields(features, examples)
    return find_fields(examples) if samples.pack is None else pack_fields(samples.pack.features)


def _decoder(wanted: WantedFields, field: Field, examples: Sequence[Any]) -> Decoder:
    if wanted.size is None:
        height, width = _sides(field, examples)
        raise InvalidStream(
            f"feature {field.name!r} is an encoded image, and its size is not given.",
            expected="size=(height, width)",
            received=f"size=None; the first image has {height} x {width} pixels",
            suggestion=f"size=({height}, {width})",
        )
    return make_decoder(wanted.size, wanted.channels, wanted.dtype)


def _sides(field: Field, examples: Sequence[Any]) -> tuple[int, int]:
    (encoded, *_) = _values(field, examples)
    height, width, _ = tf.io.decode_image(encoded, expand_animations=False).shape
    return height, width


def _values(field: Field, examples: Sequence[Any]) -> list[bytes]:
    return [value for example in examples for value in example.features.feature[field.name].bytes_list.value]


def _decode(choice: FieldChoice, decode_image: Callable[[Any], Any] | None) -> Decode:
    parsers = {field.name: field.parser for field in choice.fields}

    def decode(record: Any) -> tuple[Any, ...]:
        parsed = tf.io.parse_single_example(record, parsers)
        return tuple(field.value(parsed[field.name], decode_image) for field in choice.fields)

    return decode


def _plain_sizes(samples: RecordSamples, specs: tuple[Spec, ...]) -> SampleSizes:
    """The bytes of elements, the decoding of images aside; a text is not longer than its record."""
    texts_bytes = samples.raw_bytes if any(spec.dtype == tf.string for spec in specs) else 0
    return SampleSizes(
        held_bytes=samples.held_bytes,
        raw_bytes=samples.raw_bytes,
        working_bytes=samples.raw_bytes,
        element_bytes=sum(spec.size_bytes for spec in specs) + texts_bytes,
    )
