"""`from_images`: a folder of images, or a list of them, as batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Unpack

import tensorflow as tf

from memfit.core.errors import NoData
from memfit.data.reading.decoding import IMAGE_SUFFIXES, make_decoder
from memfit.data.reading.files import Names, list_files, shown
from memfit.data.reading.labels import Labelling, Labels, find_labels
from memfit.data.reading.oversized_images import guarded, measure_images, sampled_indices
from memfit.data.reading.usual_images import look_at
from memfit.data.stream.dataset import open_stream
from memfit.data.stream.definition import Stream
from memfit.data.stream.options import StreamOptions, read_options
from memfit.data.stream.source import Array, Indices, Spec


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
        """The bytes of paths and labels in memory."""
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
    dtype: values are 0 to 255 either way, for a `keras.layers.Rescaling(1 / 255)` in the model or a division
        in `augment`; "uint8" takes a quarter of the memory.
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
    seen = look_at(_sampled(files), decoder)
    sizes = measure_images(files.held_bytes, seen, decoder, files.specs[1:])
    decode, number = guarded(decoder, sizes, settings, seen)
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
    names = Names(list_files(folder, IMAGE_SUFFIXES))
    if len(names) == 0:
        endings = ", ".join(suffix.decode() for suffix in IMAGE_SUFFIXES)
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
