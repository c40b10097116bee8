"""`from_images`: a folder of images, or a list of them, as batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Unpack

import tensorflow as tf

from memfit.data.decoding import Decoder
from memfit.data.files import Names, list_files, shown
from memfit.data.giants import guarded, measure_images, sampled_indices
from memfit.data.labels import Labelling, Labels, find_labels
from memfit.data.options import StreamOptions, read_options
from memfit.data.sources import Array, Indices, Spec
from memfit.data.streams import Stream, open_stream
from memfit.errors import InvalidStream, NoData

SUFFIXES = (b".jpg", b".jpeg", b".jpe", b".png", b".bmp", b".gif", b".webp")


class ImageFiles:
    """Paths of images, and their labels."""

    def __init__(self, names: Names, labelling: Labelling | None) -> None:
        self._names, self._labelling = names, labelling
        self.length = len(names)
        path = Spec(tf.string)
        if labelling is None:
            self.specs: tuple[Spec, ...] = (path,)
        else:
            self.specs = (path, Spec(tf.as_dtype(labelling.values.dtype), labelling.values.shape[1:]))

    def read(self, indices: Indices) -> tuple[Array, ...]:
        """Paths, not images: TensorFlow reads and decodes these on all cores."""
        paths = self._names.take(indices)
        return (paths,) if self._labelling is None else (paths, self._labelling.values[indices])

    def name(self, index: int) -> str:
        """The path."""
        return shown(self._names[index])

    @property
    def held_bytes(self) -> int:
        """What paths and labels take."""
        return self._names.held_bytes + (0 if self._labelling is None else self._labelling.values.nbytes)


def from_images(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    size: tuple[int, int],
    labels: Labels = None,
    channels: Literal[1, 3, 4] = 3,
    dtype: Literal["uint8", "float32"] = "float32",
    augment: Callable[[Any], Any] | None = None,
    **options: Unpack[StreamOptions],
) -> Any:
    """Images of a folder, or of a list of paths, as a `tf.data.Dataset` that stays within `ram`.

    size: (height, width); larger images are decoded no further than this needs.
    labels: None for images alone, "folders", "input" (the image is its own label, as for an autoencoder),
        a CSV file of names and labels, a function of the path, or a list. Words become class numbers, and
        the dataset has `class_names`.
    dtype: values are 0 to 255 either way; "uint8" takes a quarter of the memory.
    augment: a function of one image, called in the pipeline.

        dataset = memfit.data.from_images("photos", size=(160, 160), labels="folders", ram="512MiB")
        model.fit(dataset)
    """
    settings = read_options(**options)
    decoder = make_decoder(size, channels, dtype)
    names, root = _find_names(source)
    is_own_label = isinstance(labels, str) and labels == "input"
    labelling = None if is_own_label else find_labels(labels, names, root)
    files = ImageFiles(names, labelling)
    sizes = measure_images(files.held_bytes, _sampled(files), decoder, files.specs[1:])
    decode, number = guarded(decoder, sizes, settings)
    dataset = open_stream(
        Stream(
            source=files,
            options=settings,
            sizes=sizes,
            decode=lambda path, *rest: (decode(tf.io.read_file(path)), *rest),
            augment=augment,
            decoded=(decoder.spec, *files.specs[1:]),
            finish=(lambda x: (x, x)) if is_own_label else _as_given,
            registered=(number,),
        )
    )
    if labelling is not None and labelling.class_names is not None:
        dataset.class_names = labelling.class_names
    return dataset


def _as_given(*parts: Any) -> Any:
    return parts if len(parts) > 1 else parts[0]


def make_decoder(size: Any, channels: int, dtype: str) -> Decoder:
    """What images shall become, checked."""
    is_size = (
        isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    )
    if not is_size or channels not in (1, 3, 4) or dtype not in ("uint8", "float32"):
        raise InvalidStream(
            "images cannot become that.",
            expected='size=(height, width), channels of 1, 3 or 4, dtype "uint8" or "float32"',
            received=f"size={size!r}, channels={channels!r}, dtype={dtype!r}",
            suggestion="size=(224, 224)",
        )
    height, width = size
    return Decoder(height, width, channels, tf.as_dtype(dtype))


def _find_names(source: Any) -> tuple[Names, bytes | None]:
    """The paths of all images, and the folder that they are in if it was named."""
    if not isinstance(source, (str, os.PathLike)):
        names = Names(os.fsencode(path) for path in source)
        if len(names) == 0:
            raise NoData("an empty list", expected="paths of images", found="none", suggestion='["a.jpg"]')
        return names, None
    folder = Path(source)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing of that name"
        raise NoData(folder, expected="a folder", found=found, suggestion="the folder that images are in")
    names = Names(list_files(folder, SUFFIXES))
    if len(names) == 0:
        endings = ", ".join(suffix.decode() for suffix in SUFFIXES)
        count = sum(len(files) for _, _, files in os.walk(folder))
        raise NoData(
            folder,
            expected=f"files that end in {endings}",
            found=f"{count:,} other files",
            suggestion="a list of paths instead of a folder, if images are called otherwise",
        )
    return names, os.fsencode(folder)


def _sampled(files: ImageFiles) -> Iterator[bytes]:
    """Some of the images, encoded; those that cannot be read are found later, when their turn comes."""
    for path in files.read(sampled_indices(files.length))[0]:
        with suppress(OSError):
            yield Path(os.fsdecode(path)).read_bytes()
