"""Elements <-> the bytes that a pack keeps: TensorFlow's examples, or plain rows on their way to HDF5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.data.manifest import Feature, Format
from memfit.data.packs.pack_source import Element

_LENGTH_BYTES = 8


def encoder(format: Format, features: dict[str, Feature]) -> Callable[[Element], bytes]:  # noqa: A002
    """A function from an element to its bytes, always the same for the same element."""
    return _example(features) if format == "tfrecord" else _row(features)


def _example(features: dict[str, Feature]) -> Callable[[Element], bytes]:
    train = tf.train

    def feature(name: str, value: Any) -> Any:
        kind = features[name]
        if kind.kind != "number":
            return train.Feature(bytes_list=train.BytesList(value=[as_bytes(kind, value)]))
        numbers = np.ravel(value).tolist()
        if str(kind.dtype).startswith("float"):
            return train.Feature(float_list=train.FloatList(value=numbers))
        return train.Feature(int64_list=train.Int64List(value=numbers))

    def encode(element: Element) -> bytes:
        parts = {name: feature(name, value) for name, value in element.items()}
        example = train.Example(features=train.Features(feature=parts))
        return bytes(example.SerializeToString(deterministic=True))

    return encode


def _row(features: dict[str, Feature]) -> Callable[[Element], bytes]:
    def part(name: str, feature: Feature, element: Element) -> bytes:
        data = as_bytes(feature, element[name])
        return _with_length(data) if feature.kind == "text" else data

    return lambda element: b"".join(part(name, feature, element) for name, feature in features.items())


def _with_length(text: bytes) -> bytes:
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def as_bytes(feature: Feature, value: Any) -> bytes:
    """Texts in UTF-8, images as they are, numbers in little-endian C order."""
    if feature.dtype is None:
        return value.encode() if isinstance(value, str) else bytes(value)
    return np.asarray(value, stored_dtype(feature)).tobytes()


def stored_dtype(feature: Feature) -> np.dtype[Any]:
    """The type of a feature's numbers, little-endian."""
    return np.dtype(feature.dtype).newbyteorder("<")


def read_row(features: dict[str, Feature], row: bytes) -> Element:
    """An element from the bytes of its row."""
    element: Element = {}
    at = 0
    for name, feature in features.items():
        if feature.kind == "text":
            at += _LENGTH_BYTES
            end = at + int.from_bytes(row[at - _LENGTH_BYTES : at], "little")
            element[name] = row[at:end]
        else:
            dtype, shape = stored_dtype(feature), feature.shape or ()
            end = at + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            element[name] = np.frombuffer(row[at:end], dtype).reshape(shape)
        at = end
    return element
