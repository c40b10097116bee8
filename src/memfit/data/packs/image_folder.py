"""Folders of images as sources of packs: images go in as they are, checked, resized or as pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from memfit.core.errors import DamagedData, InvalidStream, NoData
from memfit.data.manifest import Feature, SourceKind
from memfit.data.packs.pack_options import Settings
from memfit.data.packs.pack_source import Element, Indices
from memfit.data.reading.decoding import IMAGE_SUFFIXES, Decoder
from memfit.data.reading.files import Names, list_files, shown
from memfit.data.reading.labels import find_labels
from memfit.data.stream.unreadable_samples import first_line

_FRAME_BYTES = 64  # what a record takes beside its image and its path
_SAMPLED = 24
_CHANNELS = 3
_PNG = b"\x89PNG"
_JPEG = b"\xff\xd8\xff"
_QUALITY = 95
_CHANNELS_OF_PNG = {0: 1, 4: 4, 6: 4}  # by its type of colour: grey, grey and colours with transparency


class ImageFolder:
    """Images below a folder: their bytes as they are, or decoded and made smaller."""

    kind: SourceKind = "images"

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._root = os.fsencode(folder)
        self._names = Names(list_files(folder, IMAGE_SUFFIXES))
        self.length = len(self._names)
        if not self.length:
            raise NoData(
                folder,
                expected=f"files that end in {', '.join(suffix.decode() for suffix in IMAGE_SUFFIXES)}",
                found=f"{sum(len(files) for _, _, files in os.walk(folder)):,} other files",
                suggestion="the folder that images are in",
            )
        self._labelling = find_labels(settings.labels, self._names, self._root)
        self.class_names = None if self._labelling is None else self._labelling.class_names
        self._is_resized, self._transform = settings.size is not None, _transform(settings)
        self._image, self._label = ("x", "y") if settings.format == "hdf5" else ("image", "label")
        self.features = self._features(settings)
        self._facts = np.array([_facts(name) for name in self._names], np.int64)

    def _features(self, settings: Settings) -> dict[str, Feature]:
        image = Feature("image")
        if settings.format == "hdf5" and settings.size is not None:
            image = Feature("array", "uint8", (*settings.size, _CHANNELS))
        features = {self._image: image, "path": Feature("text")}
        if self._labelling is not None:
            values = self._labelling.values
            features[self._label] = Feature("number", values.dtype.name, values.shape[1:])
        return features

    def stamps(self) -> Iterator[bytes]:
        """Names, sizes and times of all files, and labels."""
        for index in range(self.length):
            yield self._below(index) + b"\0"
        yield self._facts.tobytes()
        if self._labelling is not None:
            yield self._labelling.values.tobytes()
            yield repr(self.class_names).encode()

    def _below(self, index: int) -> bytes:
        return self._names[index].removeprefix(self._root).lstrip(b"/")

    def close(self) -> None:
        """Nothing is open."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """By the sizes of files; where they are encoded again, by some of them."""
        sizes: npt.NDArray[np.int64] = self._facts[:, 0]
        if self._is_resized:
            chosen = np.linspace(0, self.length - 1, min(_SAMPLED, self.length)).astype(np.int64)
            read = [item for item in self.read(chosen) if not isinstance(item, DamagedData)]
            found = [len(bytes(item[self._image])) for item in read]
            sizes = np.full(self.length, int(np.mean(found)) if found else 1, np.int64)
        names = np.array([len(name) - len(self._root) for name in self._names], np.int64)
        return np.asarray(sizes + names + _FRAME_BYTES, np.int64)

    def read(self, indices: Indices) -> Sequence[Element | DamagedData]:
        """Images as they go into the pack, with labels and paths."""
        return [self._element(index) for index in indices.tolist()]

    def _element(self, index: int) -> Element | DamagedData:
        name = self._names[index]
        try:
            with open(name, "rb") as file:  # noqa: PTH123 (a path of bytes)
                image = self._transform(file.read())
        except OSError as error:
            return DamagedData(shown(name), error.strerror or str(error))
        except (tf.errors.OpError, ValueError) as error:
            return DamagedData(shown(name), first_line(error))
        element: Element = {self._image: image, "path": self._below(index)}
        if self._labelling is not None:
            element[self._label] = self._labelling.values[index]
        return element


def _facts(name: bytes) -> tuple[int, int]:
    """Size and time of a file; zeros for a link that leads nowhere."""
    try:
        found = os.stat(name)  # noqa: PTH116 (a path of bytes)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _transform(settings: Settings) -> Callable[[bytes], Any]:
    """The function that each image passes through on its way into a pack."""
    if settings.format == "hdf5":
        if settings.size is None:
            raise InvalidStream(
                "images in HDF5 have one size.",
                expected="size=(height, width), on the command line --size HEIGHTxWIDTH",
                received='format="hdf5" without a size',
                suggestion="--size 160x160",
            )
        return pixels(settings.size, _CHANNELS)
    if settings.size is not None:
        return resized(settings.size)
    return checked if settings.check else as_it_is


def as_it_is(encoded: bytes) -> bytes:
    """An image that is not checked."""
    return encoded


def checked(encoded: bytes) -> bytes:
    """An image that can be decoded; raises TensorFlow's error if it cannot."""
    with tf.device("CPU:0"):
        tf.io.decode_image(encoded, expand_animations=False)
    return encoded


def pixels(size: tuple[int, int], channels: int) -> Callable[[bytes], Any]:
    """A function that decodes an image to an array of one size."""
    decoder = Decoder(*size, channels, tf.uint8)

    def decode(encoded: bytes) -> Any:
        with tf.device("CPU:0"):
            return decoder(encoded).numpy()

    return decode


def resized(size: tuple[int, int]) -> Callable[[bytes], bytes]:
    """A function that makes an image of one size, encoded again; PNG stays PNG, grey stays grey."""

    def resize(encoded: bytes) -> bytes:
        is_png = encoded.startswith(_PNG)
        with tf.device("CPU:0"):
            channels = _channels_of_png(encoded) if is_png else _channels_of_others(encoded)
            image = Decoder(*size, channels, tf.uint8)(encoded)
            again = tf.io.encode_png(image) if is_png else tf.io.encode_jpeg(image, quality=_QUALITY)
        return bytes(again.numpy())

    return resize


def _channels_of_png(encoded: bytes) -> int:
    if b"tRNS" in encoded.partition(b"IDAT")[0]:
        return 4
    return _CHANNELS_OF_PNG.get(encoded[25] if len(encoded) > 25 else 2, 3)


def _channels_of_others(encoded: bytes) -> int:
    if not encoded.startswith(_JPEG):
        return 3
    return 1 if int(tf.image.extract_jpeg_shape(encoded)[2]) == 1 else 3
