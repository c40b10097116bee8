"""The folder of a pack: one writer at a time, and the files of an earlier attempt."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from memfit.core.errors import CannotWrite, DamagedData, InvalidRecord, InvalidStream, RecordTooNew
from memfit.core.serialization import Record
from memfit.data.manifest import Pack, Unfinished
from memfit.data.packs.shards import TEMPORARY, what_is_wrong, write_whole, writing

R = TypeVar("R", bound=Record)
MANIFEST, UNFINISHED = "manifest.json", "unfinished.json"

_OURS = re.compile(
    r"(manifest\.json|unfinished\.json|data(\.h5|\.index\.npy)"
    r"|shard-\d{5,}\.(tfrecord|rows|index\.npy|done\.json))(\.tmp)?"
)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make a folder, and keep every other writer out of it."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotWrite(str(path), "another memfit pack is writing there") from error
        yield
    finally:
        os.close(descriptor)


def files_of(path: Path) -> list[Path]:
    """The files that packing has put into a folder, the manifest first; nothing else is ever touched."""
    found = (entry for entry in path.iterdir() if _OURS.fullmatch(entry.name))
    return sorted(found, key=lambda entry: (entry.name != MANIFEST, entry.name))


def prepare(path: Path, fingerprint: str, *, force: bool) -> Pack | None:
    """Make a folder ready for a pack; the pack itself, if it is there and finished."""
    _refuse_strangers(path)
    if force:
        _remove(files_of(path))
    _remove([file for file in files_of(path) if file.name.endswith(TEMPORARY)])
    pack = _recall(Pack, path / MANIFEST)
    unfinished = _recall(Unfinished, path / UNFINISHED)
    if pack is None and unfinished is None and files_of(path):
        raise _other_pack(path, "files of an unknown pack")
    for found in (pack and pack.source.fingerprint, unfinished and unfinished.fingerprint):
        if found and found != fingerprint:
            raise _other_pack(path, _difference(found, fingerprint))
    if pack is not None:
        _check_whole(path, pack)
        remove_all_but(path, pack)
    return pack


def planned(path: Path) -> Unfinished | None:
    """The plan of the unfinished pack in a folder; None if there is none."""
    return _recall(Unfinished, path / UNFINISHED)


def plan(path: Path, unfinished: Unfinished) -> None:
    """Say what the pack in a folder will be."""
    write_whole(path / UNFINISHED, unfinished.to_json().encode())


def finish(path: Path, pack: Pack) -> None:
    """Write the manifest, and remove what only an unfinished pack needs."""
    write_whole(path / MANIFEST, (pack.to_json() + "\n").encode())
    remove_all_but(path, pack)


def remove_all_but(path: Path, pack: Pack) -> None:
    """Remove whatever does not belong to a finished pack."""
    names = {shard.name for shard in pack.shards}
    stems = {name.partition(".")[0] for name in names}
    kept = {MANIFEST, *names, *(f"{stem}.index.npy" for stem in stems)}
    _remove([file for file in files_of(path) if file.name not in kept])


def _remove(files: list[Path]) -> None:
    for file in files:
        with writing(file):
            file.unlink(missing_ok=True)


def _recall(kind: type[R], path: Path) -> R | None:
    try:
        return kind.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except RecordTooNew:
        raise
    except (InvalidRecord, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise _other_pack(path.parent, f"a {path.name} that cannot be read: {reason}") from error


def _refuse_strangers(path: Path) -> None:
    """A manifest.json of something else is never removed, not even by force."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(found, dict) or found.get("kind") != "pack":
        raise InvalidStream(
            f"{path} holds a manifest.json of something else.",
            expected="an empty folder, or a name that is free",
            received="a manifest.json that no pack has",
            suggestion=f"{path}.pack",
        )


def _difference(found: str, wanted: str) -> str:
    is_same = found.partition("-")[0] == wanted.partition("-")[0]
    return "a pack of other source files, or of older ones" if is_same else "a pack with other arguments"


def _other_pack(path: Path, received: str) -> InvalidStream:
    return InvalidStream(
        f"{path} holds another pack; nothing was changed.",
        expected="an empty folder, or the pack that these arguments make of this source",
        received=received,
        suggestion="another DEST, or --force (force=True) to remove what is there and begin anew",
    )


def _check_whole(path: Path, pack: Pack) -> None:
    for shard in pack.shards:
        if reason := what_is_wrong(path, shard):
            where = str(path / shard.name)
            raise DamagedData(where, reason, suggestion="--force (force=True) to make the pack anew")
