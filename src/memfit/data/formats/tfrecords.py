"""`from_tfrecords`: TFRecord files, or a packed folder, as batches."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from memfit.core.errors import DamagedData, InvalidStream, NoData
from memfit.data.manifest import Pack
from memfit.data.reading.files import Names, shown
from memfit.data.stream.dataset import open_stream
from memfit.data.stream.definition import Stream
from memfit.data.stream.options import Options, StreamOptions, read_options
from memfit.data.stream.source import Unreadable
from memfit.data.tfrecord.field_choice import Chosen
from memfit.data.tfrecord.layout import Features, Layout, RecordSamples, WantedFields, find_layout
from memfit.data.tfrecord.record_frames import find_compression
from memfit.data.tfrecord.record_index import RecordFiles, find_index, pack_index
from memfit.data.tfrecord.sequences import open_sequence

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_MANIFEST = "manifest.json"
_SAMPLED = 64
_NAME = re.compile(r"(\.tfrec(ord)?s?|-\d+-of-\d+)(\.gz|\.zlib)?$", re.IGNORECASE)


def from_tfrecords(
    source: Paths,
    *,
    features: Features = None,
    x: Chosen = None,
    y: Chosen = None,
    size: tuple[int, int] | None = None,
    channels: Literal[1, 3, 4] = 3,
    dtype: Literal["uint8", "float32"] = "float32",
    augment: Callable[[Any], Any] | None = None,
    **options: Unpack[StreamOptions],
) -> Any:
    """Records of TFRecord files as a `tf.data.Dataset` that stays within `ram`.

    source: a folder that `memfit pack` wrote, any other folder, a pattern such as "train-*.tfrecord", a file,
        or a list of files. Compressed ones can only be read in sequence, and are shuffled in a window.
    features: a dict as for tf.io.parse_example; without it, some records tell. "raw" gives records as they
        are, and a function of one record whatever it returns.
    x, y: names of features, or lists of names for dicts of them. Without, x is the only image (or array), and
        y what is called label, labels, class, target or y. y="input" makes x its own target, y=[] leaves it
        out.
    size, channels, dtype: what encoded images become, as in `from_images`.
    augment: a function of one x, called in the pipeline.

        dataset = memfit.data.from_tfrecords("train-*.tfrecord", size=(160, 160), ram="512MiB")
        model.fit(dataset)
    """
    settings = read_options(**options)
    wanted = WantedFields(features, x, y, size, channels, dtype, augment)
    folder = Path(source) if isinstance(source, (str, os.PathLike)) else None
    pack = None if folder is None else _read_pack(folder)
    if folder is not None and pack is not None:
        index = pack_index(folder, pack)
    else:
        names = _find_names(source)
        if any(map(find_compression, names)):
            return open_sequence(names, wanted, settings)
        index = find_index(names)
    files = RecordFiles(index)
    if files.length == 0:
        raise _no_records(source)
    if settings.on_error == "raise" and (lost := index.first_lost()) is not None:
        raise DamagedData(lost.where, lost.reason)
    dataset = _open(files, find_layout(wanted, _samples(files, pack, settings), settings), settings)
    if pack is not None and pack.class_names is not None:
        dataset.class_names = list(pack.class_names)
    return dataset


def _open(files: RecordFiles, layout: Layout, options: Options) -> Any:
    return open_stream(
        Stream(
            source=files,
            options=options,
            sizes=layout.sizes,
            decode=layout.decode,
            augment=layout.augment,
            decoded=layout.specs,
            finish=layout.finish,
            registered=layout.registered,
        )
    )


def _samples(files: RecordFiles, pack: Pack | None, options: Options) -> RecordSamples:
    """Records from all over the data set; those that cannot be read are reported when their turn comes."""
    records = []
    for index in np.linspace(0, files.length - 1, min(_SAMPLED, files.length)).astype(np.int64):
        with suppress(Unreadable):
            records += files.read(np.array([index]))[0].tolist()
    return RecordSamples(
        records=records,
        where=shown(files.index.names[0]),
        pack=pack,
        held_bytes=files.index.held_bytes,
        raw_bytes=files.index.mean_of_the_largest(options.block_size),
    )


def _read_pack(folder: Path) -> Pack | None:
    """The manifest of a packed folder; None where there is none."""
    if not (folder / _MANIFEST).is_file():
        return None
    pack = Pack.from_json((folder / _MANIFEST).read_text(encoding="utf-8"))
    if pack.format != "tfrecord":
        raise InvalidStream(
            f"{folder} is a pack of another format.",
            expected='the format "tfrecord"',
            received=f"format={pack.format!r}",
            suggestion=f"memfit.data.from_{pack.format}",
        )
    return pack


def _find_names(source: Paths) -> Names:
    """The files that are meant, in the order of their names unless they are listed."""
    if not isinstance(source, (str, os.PathLike)):
        paths = [Path(path) for path in source]
    elif Path(source).is_dir():
        paths = _files_below(Path(source))
    elif Path(source).exists():
        paths = [Path(source)]
    else:
        paths = [Path(path) for path in sorted(glob.glob(os.fspath(source), recursive=True))]  # noqa: PTH207
    if not paths:
        raise _no_records(source)
    for path in paths:
        if not path.is_file():
            found = "a folder" if path.is_dir() else "nothing of that name"
            raise NoData(path, expected="a TFRecord file", found=found, suggestion="files that exist")
    return Names(os.fsencode(path) for path in paths)


def _files_below(folder: Path) -> list[Path]:
    paths = [Path(where) / name for where, _, names in os.walk(folder) for name in names]
    return sorted(path for path in paths if _NAME.search(path.name))


def _no_records(source: Paths) -> NoData:
    return NoData(
        source if isinstance(source, (str, os.PathLike)) else "an empty list",
        expected="files that end in .tfrecord, .tfrecords, .tfrec or -00000-of-00008, with records in them",
        found="none",
        suggestion='a pattern, such as "data/*.records", if they are called otherwise',
    )
