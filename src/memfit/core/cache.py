"""Records that are kept from one run to the next, under the user's cache directory.

`MEMFIT_HOME` puts them elsewhere. Files are written whole, so that several runs can share them; the newest so
many of a kind stay. A cache that cannot be read or written is no error: it is only slower without.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from memfit.core.errors import InvalidRecord
from memfit.core.serialization import Record

R = TypeVar("R", bound=Record)

_MOST = 256


def home() -> Path:
    """The folder of the files that memfit keeps and may lose."""
    given = os.environ.get("MEMFIT_HOME")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit"


def recall(kind: type[R], key: str) -> R | None:
    """The record that was kept under a key; None where there is none that can be read."""
    path = _path(kind, key)
    try:
        found = kind.from_json(path.read_text(encoding="utf-8"))
        path.touch()
    except (OSError, InvalidRecord, UnicodeDecodeError):
        return None
    return found


def keep(key: str, record: Record) -> None:
    """Keep a record under a key."""
    path = _path(type(record), key)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(record.to_json(), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _drop_the_oldest(path.parent)


def _path(kind: type[Record], key: str) -> Path:
    return home() / f"{kind.kind()}s" / f"{key}.json"


def _drop_the_oldest(folder: Path) -> None:
    ages = sorted(((path.stat().st_mtime, path) for path in folder.glob("*.json")), reverse=True)
    for _, path in ages[_MOST:]:
        path.unlink(missing_ok=True)
