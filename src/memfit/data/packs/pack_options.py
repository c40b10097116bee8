"""The arguments of `pack`, checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from memfit.core.errors import InvalidStream
from memfit.core.units import parse_size
from memfit.data.manifest import Format
from memfit.data.stream.options import OnError

OnProgress = Callable[[str, int, int], None]  # what is being done, how many elements of how many

_DEFAULT_SHARD_BYTES = 128 << 20


class PackOptions(TypedDict, total=False):
    """Arguments of `pack`.

    labels: of images: "folders", a CSV file of names and labels, a function of the path, or a list.
    format: "tfrecord" unless told, or "hdf5".
    size: (height, width) that images get, encoded again; HDF5 needs it.
    x, y: names of the arrays in an HDF5 or npz file; for an npy file, y is another one.
    shard_size: about how large a shard is, "128MiB" unless told.
    shards: how many there are, instead.
    shuffle, seed: mix elements once, so that readers in sequence get a random order.
    on_error: "raise", or "skip" to leave out what cannot be read, which is listed in the manifest.
    check: decode every image, to find damaged ones. On unless told.
    workers: threads that read and decode; as many as there are cores unless told.
    force: begin anew where another pack is.
    on_progress: called with what is being done, how many elements are done, and how many there are.
    """

    labels: Any
    format: Format
    size: tuple[int, int] | None
    x: str | None
    y: str | None
    shard_size: str | int | None
    shards: int | None
    shuffle: bool
    seed: int
    on_error: OnError
    check: bool
    workers: int | None
    force: bool
    on_progress: OnProgress | None


@dataclass(frozen=True)
class Settings:
    """The arguments of `pack`, with defaults for those not given."""

    labels: Any = None
    format: Format = "tfrecord"
    size: tuple[int, int] | None = None
    x: str | None = None
    y: str | None = None
    shard_bytes: int = _DEFAULT_SHARD_BYTES
    shards: int | None = None
    shuffle: bool = False
    seed: int = 0
    on_error: OnError = "raise"
    check: bool = True
    workers: int | None = None
    force: bool = False
    on_progress: OnProgress | None = None

    @property
    def width(self) -> int:
        """The number of threads that read and decode."""
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress, if `on_progress` was given."""
        if self.on_progress is not None:
            self.on_progress(what, done, total)

    @property
    def shaping(self) -> dict[str, Any]:
        """Those that change what a pack contains."""
        names = ("format", "size", "x", "y", "shard_bytes", "shards", "shuffle", "seed", "check")
        is_named = isinstance(self.labels, (str, os.PathLike))
        labels = str(self.labels) if is_named else type(self.labels).__name__
        return {"labels": labels, **{name: getattr(self, name) for name in names}}


def read_settings(**given: Unpack[PackOptions]) -> Settings:
    """Check the arguments of `pack`."""
    if unknown := set(given) - set(PackOptions.__annotations__):
        raise _wrong(
            min(unknown), "an argument that pack has", ", ".join(sorted(unknown)), 'labels="folders"'
        )
    if given.get("shard_size") is not None and given.get("shards") is not None:
        received = f"shard_size={given['shard_size']!r}, shards={given['shards']!r}"
        raise _wrong("shards", "one of shard_size and shards", received, "shards=8 alone")
    shard_size = given.get("shard_size")
    known: dict[str, Any] = {name: value for name, value in given.items() if name != "shard_size"}
    if isinstance(given.get("size"), list):
        known["size"] = tuple(known["size"])
    settings = Settings(
        **known,
        shard_bytes=_DEFAULT_SHARD_BYTES if shard_size is None else parse_size(shard_size, "shard_size"),
    )
    _check_words(settings)
    _check_numbers(settings)
    return settings


def _check_words(settings: Settings) -> None:
    if settings.format not in ("tfrecord", "hdf5"):
        raise _wrong("format", '"tfrecord" or "hdf5"', f"format={settings.format!r}", 'format="tfrecord"')
    if settings.on_error not in ("raise", "skip"):
        received = f"on_error={settings.on_error!r}"
        raise _wrong("on_error", '"raise" or "skip"', received, 'on_error="skip"')


def _check_numbers(settings: Settings) -> None:
    size = settings.size
    is_size = isinstance(size, tuple) and len(size) == 2 and all(_is_whole(side, 1) for side in size)
    if size is not None and not is_size:
        raise _wrong("size", "(height, width) in pixels", f"size={size!r}", "size=(160, 160)")
    for name, least in (("shards", 1), ("workers", 1), ("seed", 0)):
        value = getattr(settings, name)
        if value is not None and not _is_whole(value, least):
            expected = f"a whole number of at least {least}"
            raise _wrong(name, expected, f"{name}={value!r} ({type(value).__name__})", f"{name}=4")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wrong(name: str, expected: str, received: str, suggestion: str) -> InvalidStream:
    return InvalidStream(
        f"{name} is not as pack takes it.", expected=expected, received=received, suggestion=suggestion
    )


def check_places(source: Path, dest: Path) -> None:
    """Refuse a DEST that is a file, or that would become part of what is packed."""
    if dest.exists() and not dest.is_dir():
        raise InvalidStream(
            f"{dest} is not a folder.",
            expected="a folder for the pack, or a name that is free",
            received="a file",
            suggestion=f"{dest}.pack",
        )
    inside = dest.resolve()
    if source.is_dir() and (inside == source.resolve() or source.resolve() in inside.parents):
        raise InvalidStream(
            f"{dest} is inside of {source}.",
            expected="a folder beside the source",
            received=f"{inside}",
            suggestion=f"{source.resolve()}.pack",
        )
