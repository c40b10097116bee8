"""Compressed TFRecord files as a dataset: decompressed, checked and read in sequence, once in each epoch.

TensorFlow takes one that was cut off between two records for a shorter one; here that is an error.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import tensorflow as tf

from memfit.core.errors import DamagedData, InvalidStream, NoData
from memfit.data.reading.files import Names, shown
from memfit.data.stream.definition import Finish
from memfit.data.stream.options import Options
from memfit.data.stream.sequential import Passage, open_passage
from memfit.data.stream.source import Spec, release_with
from memfit.data.tfrecord.checksums import masked_checksums
from memfit.data.tfrecord.layout import Layout, RecordSamples, WantedFields, find_layout
from memfit.data.tfrecord.record_frames import FRAME_BYTES, HEADER_BYTES, find_compression, is_sound

_PIECE_BYTES = 64 << 10
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_SAMPLED, _FILES_SAMPLED = 16, 4
_AT_ONCE_BYTES = 256 << 10


class Inflated(io.RawIOBase):
    """The decompressed bytes of a GZIP or ZLIB file, or of several that follow each other in one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill what can be filled at once; nothing at the end."""
        found = b""
        while not found:
            given = (
                self._inflate.unconsumed_tail or self._inflate.unused_data or self._file.read(_PIECE_BYTES)
            )
            if self._inflate.eof:
                if not given:
                    return 0
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            found = self._inflate.decompress(given, len(target))
            if not (given or found or self._inflate.eof):
                raise EOFError("the file ends before what was compressed in it")
        target[: len(found)] = found
        return len(found)


@contextmanager
def opened_whole(path: bytes) -> Iterator[BinaryIO]:
    """A file that is read from its beginning to its end, compressed or not."""
    with Path(os.fsdecode(path)).open("rb") as file:
        yield (
            cast(BinaryIO, io.BufferedReader(Inflated(file), _PIECE_BYTES))
            if find_compression(path)
            else file
        )


def records_of(path: bytes) -> Iterator[bytes]:
    """The records of a file one after the other, compressed or not."""
    number, reason, more = 0, None, True
    with opened_whole(path) as file:
        while more and reason is None:
            records, checksums, reason = _next_records(file)
            more = bool(records)
            for record, is_right in zip(records, masked_checksums(records) == checksums, strict=True):
                if not is_right:
                    raise DamagedData(_name(path, number), "its data do not match their checksum")
                yield record
                number += 1
    if reason is not None:
        raise DamagedData(_name(path, number), reason)


def _name(path: bytes, number: int) -> str:
    return f"{shown(path)}, record {number:,}"


def _next_records(file: BinaryIO) -> tuple[list[bytes], list[int], str | None]:
    """Some records with their checksums, and what is wrong behind them; none at the end."""
    records: list[bytes] = []
    checksums: list[int] = []
    held_bytes = 0
    try:
        while held_bytes < _AT_ONCE_BYTES and (header := file.read(HEADER_BYTES)):
            if len(header) < HEADER_BYTES or not is_sound(header):
                return records, checksums, "its length is damaged, or the file ends in it"
            length = int.from_bytes(header[:8], "little")
            frame = file.read(length + 4)
            if len(frame) < length + 4:
                return records, checksums, "the file ends in it"
            records.append(frame[:-4])
            checksums.append(int.from_bytes(frame[-4:], "little"))
            held_bytes += length + FRAME_BYTES
    except (OSError, EOFError, zlib.error) as error:
        return records, checksums, str(error)
    return records, checksums, None


def open_sequence(names: Names, wanted: WantedFields, options: Options) -> Any:
    """The dataset of compressed files, which are run through once in each epoch."""
    if options.on_error == "skip":
        raise InvalidStream(
            "nothing can be left out of compressed records.",
            expected='on_error="raise", or files that are not compressed',
            received='on_error="skip"',
            suggestion="gunzip, or memfit pack, before training",
        )
    samples = _first_records(names)
    layout = find_layout(wanted, samples, options)
    passage = Passage(
        begin=lambda: ((record,) for name in names for record in records_of(name)),
        specs=(Spec(tf.string),),
        length=None,
        element_bytes=layout.sizes.raw_bytes + layout.sizes.element_bytes,
        name=samples.where,
    )
    dataset = open_passage(passage, options, _in_batches(layout))
    for number in layout.registered:
        release_with(dataset, number)
    return dataset


def _first_records(names: Names) -> RecordSamples:
    """The first records of a few files."""
    chosen = sorted({len(names) * part // _FILES_SAMPLED for part in range(_FILES_SAMPLED)})
    records = [record for file in chosen for record in islice(records_of(names[file]), _SAMPLED)]
    where = shown(names[0])
    if not records:
        raise NoData(where, expected="records", found="none", suggestion="a file with records in it")
    return RecordSamples(records, where, None, held_bytes=names.held_bytes, raw_bytes=max(map(len, records)))


def _in_batches(layout: Layout) -> Finish:
    """The function that makes a batch of elements from a batch of records."""
    decode, augment = layout.decode, layout.augment or tf.identity
    if decode is None:
        return layout.finish
    first, *rest = (tf.TensorSpec(spec.shape, spec.dtype) for spec in layout.specs)
    types = (tf.TensorSpec.from_tensor(augment(tf.zeros(first.shape, first.dtype))), *rest)

    def one(record: Any) -> tuple[Any, ...]:
        x, *others = decode(record)
        return (augment(x), *others)

    def finish(records: Any) -> Any:
        return layout.finish(*tf.map_fn(one, records, fn_output_signature=types))

    return finish
