"""The facts in a log, gathered while it is read: bounded, however long the log."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from memfit.core.records import Evidence
from memfit.diagnosing.logs.installed_paths import looks_installed

T = TypeVar("T")
FailureKind = Literal[
    "allocator",  # of TensorFlow, with or without a dump
    "tensor",  # an op that could not have its output
    "request",  # so and so many bytes, for an unknown purpose
    "copy",  # to the device
    "driver",  # that gave nothing
    "handle",  # of cuDNN or cuBLAS
    "collective",  # of NCCL
    "unclear",  # of a library, for want of memory or of something else
    "tpu",
    "torch",  # a second framework
    "array",  # of the host
    "host",  # C++ or the system, on the host
    "kill",  # for memory, as the log says
    "killed",  # for an unknown reason
    "memfit",
]
_FIRST, _LAST = 8, 24
_MOST_SIZES = 4096
_MOST_WORKERS = 64
_MOST_FRAMES = 64
_FAR = 10**9


class Kept(Generic[T]):
    """The first few of many and the last few, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=_LAST)

    def add(self, item: T) -> None:
        """Take one more."""
        self.count += 1
        if len(self._first) < _FIRST:
            self._first.append(item)
        else:
            self._last.append(item)

    def __iter__(self) -> Iterator[T]:
        return itertools.chain(self._first, self._last)

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def last(self) -> T | None:
        """The newest."""
        return self._last[-1] if self._last else self._first[-1] if self._first else None


@dataclass(frozen=True)
class Failure:
    """One allocation that failed, or one end for want of memory, as one line says it."""

    kind: FailureKind
    evidence: Evidence
    worker: str = ""
    requested_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    allocator: str | None = None
    op: str | None = None  # empty where the log says that the request had no name
    free_bytes: int | None = None  # of the device, as its driver says
    total_bytes: int | None = None


@dataclass
class Dump:
    """The chunks and totals in the pool of an allocator that runs out."""

    worker: str = ""
    allocator: str | None = None
    failure: Failure | None = None
    listed: dict[int, int] = field(default_factory=dict)  # bytes -> chunks in use, one by one
    summed: dict[int, int] = field(default_factory=dict)  # the same from the summary
    ops: dict[int, str] = field(default_factory=dict)  # bytes -> an op that asked for such a chunk
    quotes: dict[int, Evidence] = field(default_factory=dict)  # lines of the summary
    free_bytes: int = 0
    free_chunks: int = 0
    largest_free: tuple[int, int, bytes] | None = None  # bytes, line, text
    bins_bytes: int = 0
    bins_in_use_bytes: int = 0
    pool_bytes: int | None = None
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    stats: dict[str, int] = field(default_factory=dict)
    stats_evidence: Evidence | None = None
    first_line: int = 0

    def add_chunk(self, chunks: dict[int, int], size: int, count: int = 1) -> None:
        """Count chunks in use; of a dump with too many sizes only the first are kept."""
        if size in chunks or len(chunks) < _MOST_SIZES:
            chunks[size] = chunks.get(size, 0) + count

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has been read yet."""
        return not (self.listed or self.summed or self.free_chunks or self.bins_bytes or self.stats)

    @property
    def chunks(self) -> dict[int, int]:
        """The number of chunks in use, by bytes; the summary may be cut off, and so may the list."""
        return max((self.summed, self.listed), key=_bytes_of)

    @property
    def used_bytes(self) -> int:
        """The bytes in use."""
        stated = self.in_use_bytes or self.stats.get("InUse")
        return stated or _bytes_of(self.chunks) or self.bins_in_use_bytes

    @property
    def whole_bytes(self) -> int | None:
        """All there is, in use or not."""
        return self.limit_bytes or self.stats.get("Limit") or self.pool_bytes

    @property
    def unused_bytes(self) -> int:
        """The bytes that are free in the pool, in all its pieces."""
        return self.free_bytes or max(0, self.bins_bytes - self.bins_in_use_bytes)

    @property
    def share(self) -> float | None:
        """The share of all memory that is in use."""
        return self.used_bytes / self.whole_bytes if self.whole_bytes and self.used_bytes else None


def _bytes_of(chunks: dict[int, int]) -> int:
    return sum(size * count for size, count in chunks.items())


@dataclass(frozen=True)
class XlaBuffer:
    """One buffer of XLA's at the peak."""

    size_bytes: int
    shape: str | None = None
    op: str | None = None
    source: str | None = None
    is_parameter: bool = False


@dataclass(frozen=True)
class XlaBuffers:
    """The layout of memory that XLA or a TPU reports."""

    evidence: Evidence
    parts: dict[str, int]  # parameter, temp, total, ...
    buffers: tuple[XlaBuffer, ...]


@dataclass(frozen=True)
class TracebackFrame:
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    code: str
    evidence: Evidence
    is_users: bool


@dataclass
class Traceback:
    """One traceback, up to the error that ended it."""

    first_line: int
    worker: str = ""
    frames: deque[TracebackFrame] = field(default_factory=lambda: deque(maxlen=_MOST_FRAMES))
    users: TracebackFrame | None = None  # the last frame of the user's own code
    error: Evidence | None = None
    name: str = ""  # of the error
    is_of_memory: bool = False
    is_reversed: bool = False  # of a crash: the innermost frame comes first


@dataclass
class Progress:
    """The last epoch and step of training that the log shows."""

    epoch: int | None = None
    step: int | None = None
    steps: int | None = None
    evidence: Evidence | None = None
    looked_line: int = -_FAR  # where it was last looked for


@dataclass(frozen=True)
class PrintedMemory:
    """Memory that the user's own code printed."""

    size_bytes: int
    evidence: Evidence


@dataclass
class Facts:
    """Everything that was read."""

    is_installed: Callable[[str], bool] = looks_installed  # whose code a file of a traceback is
    failures: dict[str, Kept[Failure]] = field(default_factory=dict)
    dumps: Kept[Dump] = field(default_factory=Kept)
    buffers: XlaBuffers | None = None
    nodes: Kept[Failure] = field(default_factory=Kept)  # ops by name, without a failure of their own
    tracebacks: Kept[Traceback] = field(default_factory=Kept)
    warnings: Kept[Evidence] = field(default_factory=Kept)  # that memory is scarce, no failures
    host_warnings: Kept[Evidence] = field(default_factory=Kept)
    retraces: Kept[Evidence] = field(default_factory=Kept)
    readings: Kept[PrintedMemory] = field(default_factory=Kept)
    rising: int = 0  # readings, each larger than the one before
    other_ends: Kept[Evidence] = field(default_factory=Kept)  # time limits, full disks, wrong libraries
    gpus: dict[str, int] = field(default_factory=dict)  # devices that were made -> their bytes
    scarce: Evidence | None = None  # a device most of which was taken when it was made
    progress: Progress = field(default_factory=Progress)
    size_bytes: int = 0
    lines: int = 0
    is_binary: bool = False
    _open_dumps: dict[str, Dump] = field(default_factory=dict)
    _open_tracebacks: dict[str, Traceback] = field(default_factory=dict)

    def fail(self, failure: Failure) -> None:
        """Take note of a failure, once for each line that says it."""
        kept = self.failures.setdefault(failure.kind, Kept())
        if any(failure.evidence.line == other.evidence.line for other in kept):
            return
        kept.add(failure)
        traceback = self._open_tracebacks.get(failure.worker)
        if traceback is not None and failure.kind in ("tensor", "request", "copy", "array", "tpu"):
            traceback.is_of_memory = True

    def of(self, *kinds: FailureKind) -> list[Failure]:
        """The failures of some kinds, in the order of the log."""
        found = [failure for kind in kinds for failure in self.failures.get(kind, ())]
        return sorted(found, key=lambda failure: failure.evidence.line)

    def count(self, kind: FailureKind) -> int:
        """The number of failures of a kind."""
        return self.failures[kind].count if kind in self.failures else 0

    def dump(self, worker: str, line: int) -> Dump:
        """The dump that a worker is writing."""
        if worker not in self._open_dumps:
            return self.new_dump(worker, line)
        return self._open_dumps[worker]

    def new_dump(self, worker: str, line: int) -> Dump:
        """Another dump of a worker."""
        if len(self._open_dumps) >= _MOST_WORKERS and worker not in self._open_dumps:
            worker = ""
        dump = Dump(worker, first_line=line)
        self._open_dumps[worker] = dump
        self.dumps.add(dump)
        return dump

    def traceback(self, worker: str) -> Traceback | None:
        """The traceback that a worker is writing."""
        return self._open_tracebacks.get(worker)

    def new_traceback(self, worker: str, line: int) -> Traceback:
        """Another traceback of a worker."""
        if len(self._open_tracebacks) >= _MOST_WORKERS and worker not in self._open_tracebacks:
            worker = ""
        traceback = Traceback(line, worker)
        self._open_tracebacks[worker] = traceback
        self.tracebacks.add(traceback)
        return traceback
