"""Read a whole pack and compare it with its manifest, its indices and all checksums."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from memfit.core.errors import DamagedData, InvalidRecord, NoData, RecordTooNew
from memfit.data.manifest import Damage, Feature, Pack, Shard, Verification
from memfit.data.packs.encodings import stored_dtype
from memfit.data.packs.hdf5_file import read_rows
from memfit.data.packs.pack_folder import MANIFEST, UNFINISHED, files_of
from memfit.data.packs.pack_options import OnProgress, Settings, read_settings
from memfit.data.packs.shards import FOOTER_BYTES, HEADER_BYTES, done_path, index_path, what_is_wrong
from memfit.data.stream.unreadable_samples import first_line
from memfit.data.tfrecord.checksums import masked_checksums, masked_checksums_of_lengths

_LENGTH_BYTES = 8
_MOST_TOGETHER, _TOGETHER_BYTES = 16, 2 << 20  # records that are read at once

Index = npt.NDArray[np.int64]
Tell = Callable[[int], None]


def verify_pack(
    dest: str | os.PathLike[str], *, workers: int | None = None, on_progress: OnProgress | None = None
) -> Verification:
    """Read all of a pack; what is damaged is in `damages`, each with its file and record.

    assert not memfit.data.verify_pack("packed").damages
    """
    folder, settings = Path(dest), read_settings(workers=workers, on_progress=on_progress)
    try:
        pack = Pack.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        is_begun = (folder / UNFINISHED).exists()
        raise NoData(
            folder,
            expected=f"a finished pack, which has a {MANIFEST}",
            found="a pack that is not finished" if is_begun else f"no {MANIFEST}",
            suggestion=f"memfit pack SOURCE {folder}",
        ) from error
    except RecordTooNew:
        raise
    except (InvalidRecord, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DamagedData(
            str(folder / MANIFEST), reason, suggestion="--force to make the pack anew"
        ) from error
    damages = [*_strange(folder, pack), *_damages(folder, pack, settings)]
    return Verification(
        str(folder), pack.format, pack.elements, len(pack.shards), pack.size_bytes, tuple(damages)
    )


def check_fresh(folder: Path, pack: Pack, settings: Settings) -> None:
    """Refuse to finish a pack that is not what was written; the next attempt writes damaged shards anew."""
    damages = _damages(folder, pack, settings)
    for damage in damages:
        done_path(folder / damage.file).unlink(missing_ok=True)
    if damages:
        where = f"{folder / damages[0].file}, just written,"
        raise DamagedData(where, _reason(damages[0]), suggestion="the same command, on a disk that is sound")


def _reason(damage: Damage) -> str:
    return damage.reason if damage.record is None else f"record {damage.record:,}: {damage.reason}"


def _strange(folder: Path, pack: Pack) -> list[Damage]:
    """The damages of a manifest: a wrong number of elements, and files that it does not list."""
    found = []
    counted = sum(shard.elements for shard in pack.shards)
    if counted != pack.elements:
        found.append(Damage(MANIFEST, None, f"{pack.elements:,} elements, but {counted:,} in its shards"))
    names = {shard.name for shard in pack.shards}
    known = {MANIFEST, *names, *(index_path(folder / name).name for name in names)}
    strangers = [file.name for file in files_of(folder) if file.name not in known]
    return found + [Damage(name, None, "not in the manifest") for name in strangers]


def _damages(folder: Path, pack: Pack, settings: Settings) -> list[Damage]:
    lock, done = threading.Lock(), 0

    def tell(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            settings.tell("Verifying", done, pack.elements)

    def check(shard: Shard) -> list[Damage]:
        return [Damage(shard.name, *found) for found in _check(folder, shard, pack, tell)]

    with ThreadPoolExecutor(settings.width) as pool:
        try:
            return [damage for damages in pool.map(check, pack.shards) for damage in damages]
        finally:
            pool.shutdown(cancel_futures=True)


def _check(folder: Path, shard: Shard, pack: Pack, tell: Tell) -> list[tuple[int | None, str]]:
    """The damages of a shard: (number of a record, or None for the file; reason)."""
    wrong = what_is_wrong(folder, shard)
    whole: list[tuple[int | None, str]] = [] if wrong is None else [(None, wrong)]
    index = _read_index(folder / shard.name)
    if not (folder / shard.name).exists() or index is None:
        return whole or [(None, f"{index_path(folder / shard.name).name} is no index")]
    if len(index) != shard.elements:
        whole.append((None, f"{len(index):,} elements in its index, {shard.elements:,} in the manifest"))
    check = _check_frames if pack.format == "tfrecord" else _check_rows
    return whole + list(check(folder / shard.name, index, pack.features, tell))


def _read_index(path: Path) -> Index | None:
    try:
        index = np.load(index_path(path))
    except (OSError, ValueError, EOFError):
        return None
    return index if index.dtype == np.int64 and index.ndim == 2 and index.shape[1] == 3 else None


def _check_frames(
    path: Path, index: Index, features: dict[str, Feature], tell: Tell
) -> Iterator[tuple[int, str]]:
    """Compare each record with the index and with the checksums around it."""
    with path.open("rb") as file:
        together = _together(index)
        for begin in range(0, len(index), together):
            rows = index[begin : begin + together].tolist()
            frames = [_read_frame(file, offset, length) for offset, length, _ in rows]
            reasons = _wrong_frames(frames, [length for _, length, _ in rows], [crc32 for *_, crc32 in rows])
            if begin == 0 and reasons[0] is None:
                reasons[0] = _wrong_features(frames[0].data, features)
            yield from ((begin + at, reason) for at, reason in enumerate(reasons) if reason is not None)
            tell(len(rows))


def _together(index: Index) -> int:
    largest = max(1, int(index[:, 1].max(initial=1)))
    return int(np.clip(_TOGETHER_BYTES // largest, 1, _MOST_TOGETHER))


class _Frame(NamedTuple):
    """A record as it is in the file."""

    length: bytes
    length_checksum: bytes
    data: bytes
    checksum: bytes


def _read_frame(file: Any, offset: int, length: int) -> _Frame:
    file.seek(max(0, offset))
    parts = (_LENGTH_BYTES, HEADER_BYTES - _LENGTH_BYTES, max(0, length), FOOTER_BYTES)
    return _Frame(*(file.read(size) for size in parts))


def _wrong_frames(frames: list[_Frame], lengths: list[int], crcs: list[int]) -> list[str | None]:
    """The reason why each frame is damaged, or None, by the index and by its own checksums."""
    of_lengths = masked_checksums_of_lengths(np.array(lengths, np.int64).astype(np.uint64)).tolist()
    of_data = masked_checksums([frame.data for frame in frames]).tolist()
    reasons: list[str | None] = []
    for at, frame in enumerate(frames):
        reason = None
        if len(frame.checksum) < FOOTER_BYTES:
            reason = "the file ends before it does"
        elif zlib.crc32(frame.data) != crcs[at]:
            reason = "its checksum is wrong"
        elif _number(frame.length) != lengths[at] or _number(frame.length_checksum) != of_lengths[at]:
            reason = "the length in its frame is wrong"
        elif _number(frame.checksum) != of_data[at]:
            reason = "the checksum in its frame is wrong"
        reasons.append(reason)
    return reasons


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _wrong_features(data: bytes, features: dict[str, Feature]) -> str | None:
    """Whether a record has other features than the manifest says."""
    found = tf.train.Example.FromString(data).features.feature
    if set(found) != set(features):
        return f"features {', '.join(sorted(found))}, but {', '.join(sorted(features))} in the manifest"
    for name, feature in features.items():
        kept = getattr(found[name], found[name].WhichOneof("kind")).value
        numbers = int(np.prod(feature.shape or (), dtype=np.int64))
        if feature.kind == "number" and len(kept) != numbers:
            return f"{len(kept)} numbers in {name}, but {numbers} in the manifest"
        if feature.kind == "array" and len(kept[0]) != numbers * stored_dtype(feature).itemsize:
            return f"{len(kept[0]):,} bytes in {name}, which is not what the manifest says"
    return None


def _check_rows(
    path: Path, index: Index, features: dict[str, Feature], tell: Tell
) -> Iterator[tuple[int | None, str]]:
    number = 0
    try:
        for number, row in enumerate(read_rows(path, features, _together(index))):
            if number >= len(index) or zlib.crc32(row) != index[number, 2]:
                yield number, "its checksum is wrong"
            tell(1)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        yield number, f"it cannot be read ({first_line(error)})"
        return
    if number + 1 != len(index):
        yield None, f"{number + 1:,} rows, {len(index):,} in its index"
