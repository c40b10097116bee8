"""The arguments of a stream, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from memfit.core.errors import InvalidBatchSize, InvalidStream
from memfit.core.units import parse_size

OnError = Literal["raise", "skip"]
Shuffle = bool | Literal["groups"]


class StreamOptions(TypedDict, total=False):
    """Arguments that every stream takes.

    batch_size: elements of a batch; None for single elements. 32 unless told.
    ram: what the stream may hold in memory, "1GiB" unless told.
    shuffle: another order each epoch. On unless told. "groups" is the quick one for files that are read by
        chunks or row groups: these come in a random order, and the elements of a few of them are mixed;
        other data are shuffled as ever.
    seed: the same seed gives the same orders; with "groups", within the same ram.
    start: how many elements, counted over epochs, were used before; the stream begins after them.
    on_error: "raise", or "skip" to leave out what cannot be read, which is counted and listed.
    drop_remainder: leave out a last batch that is not full.
    cache: read and decode every element once, and keep it: in memory if all of them fit into ram, otherwise
        on disk if they fit into `disk`, otherwise not.
    disk: what may be kept on disk, "16GiB" unless told.
    """

    batch_size: int | None
    ram: str | int
    shuffle: Shuffle
    seed: int
    start: int
    on_error: OnError
    drop_remainder: bool
    cache: bool
    disk: str | int


@dataclass(frozen=True)
class Options:
    """The arguments of a stream, with defaults for those not given."""

    batch_size: int | None = 32
    ram_bytes: int = 1 << 30
    shuffle: Shuffle = True
    seed: int = 0
    start: int = 0
    on_error: OnError = "raise"
    drop_remainder: bool = False
    cache: bool = False
    disk_bytes: int = 16 << 30

    @property
    def block_size(self) -> int:
        """The number of elements read at once."""
        return self.batch_size or 32


def read_options(**given: Unpack[StreamOptions]) -> Options:
    """Check the arguments of a stream."""
    unknown = set(given) - set(StreamOptions.__annotations__)
    if unknown:
        raise InvalidStream(
            f"streams have no argument {min(unknown)}.",
            expected=", ".join(StreamOptions.__annotations__),
            received=", ".join(sorted(unknown)),
            suggestion='batch_size=32, ram="1GiB"',
        )
    options = Options(
        **{name: value for name, value in given.items() if name not in ("ram", "disk")},  # type: ignore[arg-type]
        ram_bytes=parse_size(given.get("ram", "1GiB"), "ram"),
        disk_bytes=parse_size(given.get("disk", "16GiB"), "disk", least_bytes=0),
    )
    if options.batch_size is not None and not _is_whole(options.batch_size, least=1):
        raise InvalidBatchSize(options.batch_size)
    for name in ("start", "seed"):
        if not _is_whole(getattr(options, name), least=0):
            raise _not_whole(name, getattr(options, name))
    if not isinstance(options.shuffle, bool) and options.shuffle != "groups":
        raise InvalidStream(
            f"{options.shuffle!r} is no way to shuffle.",
            expected='True, False or "groups"',
            received=f"shuffle={options.shuffle!r}",
            suggestion="shuffle=True",
        )
    if options.on_error not in ("raise", "skip"):
        raise InvalidStream(
            f"{options.on_error!r} is nothing to do about an error.",
            expected='"raise" or "skip"',
            received=f"on_error={options.on_error!r}",
            suggestion='on_error="skip"',
        )
    return options


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _not_whole(name: str, value: object) -> InvalidStream:
    return InvalidStream(
        f"{name} is not a whole number of at least 0.",
        expected="0, 1, 2, …",
        received=f"{name}={value!r} ({type(value).__name__})",
        suggestion=f"{name}=0",
    )
