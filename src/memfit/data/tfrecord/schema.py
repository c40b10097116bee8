"""The features in the records of a data set: from a manifest, described by the user, or found in records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from memfit.core.errors import InvalidStream
from memfit.data.manifest import Feature
from memfit.data.reading.decoding import Decoder
from memfit.data.stream.source import Spec

Kind = Literal["image", "array", "number", "text", "varying"]

_IMAGE_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")
# decode_raw does not know these by their own names.
_SIGNED = {tf.uint32: tf.int32, tf.uint64: tf.int64}


class Field(NamedTuple):
    """One feature of every record: how it is parsed, and what it becomes."""

    name: str
    kind: Kind
    parser: Any  # what tf.io.parse_single_example takes
    spec: Spec  # as it is handed out; of images, as it is parsed
    remark: str = ""

    def value(self, parsed: Any, decode: Callable[[Any], Any] | None) -> Any:
        """In a graph: what a parsed feature becomes."""
        if self.kind == "image" and decode is not None:
            return decode(parsed)
        if self.kind == "array":
            dtype = _SIGNED.get(self.spec.dtype, self.spec.dtype)
            return tf.reshape(tf.bitcast(tf.io.decode_raw(parsed, dtype), self.spec.dtype), self.spec.shape)
        return tf.cast(parsed, self.spec.dtype) if self.kind == "number" else parsed

    def handed_out(self, decoder: Decoder | None) -> Spec:
        """Type and shape of what it becomes."""
        return decoder.spec if self.kind == "image" and decoder is not None else self.spec

    def __str__(self) -> str:
        shape = f"{list(self.spec.shape)}" if self.spec.shape else ""
        return f"{self.name} ({self.remark or self.kind + shape})"


def pack_fields(features: Mapping[str, Feature]) -> list[Field]:
    """The fields that the manifest of a pack lists."""
    return [_pack_field(name, feature) for name, feature in features.items()]


def _pack_field(name: str, feature: Feature) -> Field:
    text = tf.io.FixedLenFeature((), tf.string)
    if feature.kind in ("image", "text"):
        return Field(name, feature.kind, text, Spec(tf.string))
    spec = Spec(tf.as_dtype(feature.dtype), tuple(feature.shape or ()))
    if feature.kind == "array":
        return Field(name, "array", text, spec)
    stored = tf.float32 if spec.dtype.is_floating else tf.int64
    return Field(name, "number", tf.io.FixedLenFeature(spec.shape, stored), spec)


def find_fields(examples: Sequence[Any]) -> list[Field]:
    """The fields of some tf.train.Examples."""
    names = sorted({name for example in examples for name in example.features.feature})
    return [
        _found_field(name, [example.features.feature.get(name) for example in examples]) for name in names
    ]


def _found_field(name: str, features: Sequence[Any]) -> Field:
    kinds = {feature.WhichOneof("kind") for feature in features if feature is not None}
    lists = [_values(feature) for feature in features]
    lengths = {len(values) for values in lists}
    if len(kinds) > 1 or len(lengths) > 1 or None in kinds:
        remark = f"{min(lengths)} to {max(lengths)} values"
        return Field(name, "varying", None, Spec(tf.string), remark)
    dtype = {"bytes_list": tf.string, "int64_list": tf.int64, "float_list": tf.float32}[kinds.pop()]
    (length,) = lengths
    shape = () if length == 1 else (length,)
    kind: Kind = "number" if dtype != tf.string else "image" if _are_images(lists) else "text"
    return Field(name, kind, tf.io.FixedLenFeature(shape, dtype), Spec(dtype, shape))


def _values(feature: Any) -> Sequence[Any]:
    kind = None if feature is None else feature.WhichOneof("kind")
    return () if kind is None else getattr(feature, kind).value


def _are_images(lists: Sequence[Sequence[Any]]) -> bool:
    return bool(lists) and all(len(values) == 1 and _is_image(values[0]) for values in lists)


def _is_image(data: bytes) -> bool:
    is_bitmap = data.startswith(b"BM") and data[6:10] == bytes(4)
    is_webp = data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    return data.startswith(_IMAGE_BEGINNINGS) or is_bitmap or is_webp


def given_fields(features: Mapping[str, Any], examples: Sequence[Any]) -> list[Field]:
    """The fields that a user describes as for tf.io.parse_example; which are images, records tell."""
    return [_given_field(name, parser, examples) for name, parser in features.items()]


def _given_field(name: str, parser: Any, examples: Sequence[Any]) -> Field:
    if not isinstance(parser, tf.io.FixedLenFeature):
        return Field(name, "varying", None, Spec(tf.string), type(parser).__name__)
    dtype = tf.as_dtype(parser.dtype)
    spec = Spec(dtype, tuple(tf.TensorShape(parser.shape).as_list()))
    if dtype != tf.string:
        return Field(name, "number", parser, spec)
    lists = [_values(example.features.feature.get(name)) for example in examples]
    is_image = spec.shape == () and _are_images([values for values in lists if values])
    return Field(name, "image" if is_image else "text", parser, spec)


def read_examples(records: Sequence[bytes], where: str) -> list[Any]:
    """Serialised records as tf.train.Examples, or an error that says what they are instead."""
    examples = []
    for record in records:
        try:
            example = tf.train.Example.FromString(record)
            lists = tf.train.SequenceExample.FromString(record).feature_lists.feature_list
        except DecodeError as error:
            raise _no_example(where, f"{len(record):,} bytes that begin with {record[:12]!r}") from error
        if lists:
            raise _no_example(where, f"a tf.train.SequenceExample with {', '.join(sorted(lists))}")
        if not example.features.feature:
            raise _no_example(where, f"{len(record):,} bytes without a feature, {record[:12]!r}")
        examples.append(example)
    return examples


def _no_example(where: str, found: str) -> InvalidStream:
    return InvalidStream(
        f"the records of {where} are no tf.train.Examples.",
        expected="tf.train.Examples, unless features= says what to do with records",
        received=found,
        suggestion='features="raw" for the bytes, or features=a function of one record that parses it',
    )
