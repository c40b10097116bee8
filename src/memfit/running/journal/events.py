"""The journal events of a supervised run: one class for each kind, and their lines of JSON.

Journals of older and newer versions can be read. A field that a line lacks has its default, a field that
the class lacks is dropped, and a line of another kind becomes an `UnknownEvent`.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

Cause = Literal["memory", "asked", "unknown"]  # of an exit

_IS_OPTIONAL = "is optional"  # a field that is not written where it is None
_INLINE = "inline"  # a field of this class, whose own fields are written in its place
_OPTIONAL = {_IS_OPTIONAL: True}


@dataclass(frozen=True)
class HostReading:
    """The memory of a process, and the memory that is left around it."""

    process_bytes: int
    available_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class DeviceReading:
    """The memory that the device holds, and the most that it has held."""

    device_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    kind: ClassVar[str]  # as the journal spells it


@dataclass(frozen=True)
class StartEvent(Event):
    """The parent starts the script."""

    kind = "start"
    attempt: int = 1
    parent: int = 0  # its process


@dataclass(frozen=True)
class EndEvent(Event):
    """The parent ends."""

    kind = "end"
    code: int = 0


@dataclass(frozen=True)
class ExitEvent(Event):
    """The script came to its end by itself."""

    kind = "over"
    code: int = 0


@dataclass(frozen=True)
class KillEvent(Event):
    """A signal ended the script; with its exit cause."""

    kind = "died"
    code: int = 0
    cause: Cause | None = None
    words: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepDownEvent(Event):
    """A training begins further down its ladder the next time."""

    kind = "step down"
    training: int = 0
    rung: int = 0


@dataclass(frozen=True)
class ShortfallEvent(Event):
    """The script ends because a training does not fit; it may with oneDNN or without, where that is said."""

    kind = "does not fit"
    onednn: bool | None = None


@dataclass(frozen=True)
class KernelsEvent(Event):
    """From now on the script runs with oneDNN, or without it."""

    kind = "kernels"
    onednn: bool = False


@dataclass(frozen=True)
class LimitEvent(Event):
    """The device has a limit; None where it could not be set."""

    kind = "limit"
    limit_bytes: int | None = None


@dataclass(frozen=True)
class UnguardedEvent(Event):
    """Something of the script trains without the guard."""

    kind = "unguarded"
    reason: str = ""


@dataclass(frozen=True)
class TrainingStartEvent(Event):
    """A training begins, or goes on after these epochs, batches and steps."""

    kind = "training"
    training: int = 0
    epochs: int = 0
    batches: int = 0
    steps: int = 0


@dataclass(frozen=True)
class PlanEvent(Event):
    """A training follows a plan."""

    kind = "plan"
    training: int = 0
    plan: dict[str, Any] | None = None  # the record


@dataclass(frozen=True)
class DataEvent(Event):
    """An input pipeline of a training was checked; or it was not, for a reason."""

    kind = "data"
    training: int = 0
    argument: str | None = field(default=None, metadata=_OPTIONAL)  # of `fit`
    check: dict[str, Any] | None = field(default=None, metadata=_OPTIONAL)  # the record
    available_bytes: int | None = field(default=None, metadata=_OPTIONAL)
    reason: str | None = field(default=None, metadata=_OPTIONAL)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepEvent(Event):
    """A training has done a step."""

    kind = "step"
    training: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss: float | None = None
    micro_batch_size: int | None = None
    device: DeviceReading | None = field(default=None, metadata={_INLINE: DeviceReading})
    host: HostReading | None = field(default=None, metadata={_INLINE: HostReading})


@dataclass(frozen=True)
class OutOfMemoryEvent(Event):
    """A training survived an out-of-memory error."""

    kind = "oom"
    training: int = 0
    oom: dict[str, Any] | None = field(default=None, metadata={_INLINE: dict})  # the record


@dataclass(frozen=True)
class TrainingEndEvent(Event):
    """A training is over."""

    kind = "trained"
    training: int = 0
    steps: int = 0


@dataclass(frozen=True)
class TrainingRestoreEvent(Event):
    """A training that was over in an earlier attempt is restored."""

    kind = "restored"
    training: int = 0
    steps: int = 0


@dataclass(frozen=True)
class CheckpointEvent(Event):
    """A checkpoint was written, after a step or at the end of a training."""

    kind = "checkpoint"
    training: int = 0
    step: int | None = None
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckpointFailureEvent(Event):
    """A checkpoint could not be written."""

    kind = "no checkpoint"
    reason: str = ""


@dataclass(frozen=True)
class MemoryEvent(Event):
    """The host's memory was read."""

    kind = "memory"
    host: HostReading | None = field(default=None, metadata={_INLINE: HostReading})


@dataclass(frozen=True)
class ScarceMemoryEvent(Event):
    """Little of the host's memory is left."""

    kind = "scarce"
    host: HostReading | None = field(default=None, metadata={_INLINE: HostReading})


@dataclass(frozen=True)
class UnknownEvent(Event):
    """An event of a kind that this version does not write."""

    kind = ""
    name: str
    facts: dict[str, Any]


EVENTS: tuple[type[Event], ...] = (
    StartEvent,
    EndEvent,
    ExitEvent,
    KillEvent,
    StepDownEvent,
    ShortfallEvent,
    KernelsEvent,
    LimitEvent,
    UnguardedEvent,
    TrainingStartEvent,
    PlanEvent,
    DataEvent,
    StepEvent,
    OutOfMemoryEvent,
    TrainingEndEvent,
    TrainingRestoreEvent,
    CheckpointEvent,
    CheckpointFailureEvent,
    MemoryEvent,
    ScarceMemoryEvent,
)
_OF_KIND = {kind.kind: kind for kind in EVENTS}


@dataclass(frozen=True)
class Entry:
    """One line of a journal: an event, its time in seconds since 1970, and the process that wrote it."""

    event: Event
    at: float = 0.0
    process: int = 0


def to_line(entry: Entry) -> str:
    """The line of an entry, without its end."""
    event = entry.event
    head = {"event": event.kind, "at": entry.at, "process": entry.process}
    if isinstance(event, UnknownEvent):
        return json.dumps({**head, "event": event.name, **event.facts})
    for one in fields(event):
        head |= _written(one, getattr(event, one.name))
    return json.dumps(head)


def _written(one: Field[Any], value: Any) -> dict[str, Any]:
    if value is None and (_IS_OPTIONAL in one.metadata or _INLINE in one.metadata):
        return {}
    if _INLINE in one.metadata:
        return value if isinstance(value, dict) else asdict(value)
    return {one.name: value}


def from_line(text: str | bytes) -> Entry | None:
    """The entry of a line; None where the line is torn, or none of a journal."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or "event" not in line:
        return None
    name, at, process = line.pop("event"), line.pop("at", 0.0), line.pop("process", 0)
    kind = _OF_KIND.get(name) if isinstance(name, str) else None
    event = UnknownEvent(str(name), line) if kind is None else _read(kind, line)
    return Entry(event, at, process)


def _read(kind: type[Event], facts: dict[str, Any]) -> Event:
    inline = [one for one in fields(kind) if _INLINE in one.metadata]
    values = {
        one.name: _value(one, facts.pop(one.name))
        for one in fields(kind)
        if one not in inline and one.name in facts
    }
    return kind(**values, **{one.name: _inlined(one.metadata[_INLINE], facts) for one in inline})


def _value(one: Field[Any], value: Any) -> Any:
    is_tuple = one.default is not MISSING and isinstance(one.default, tuple)
    return tuple(value) if is_tuple and isinstance(value, list) else value


def _inlined(kind: type[Any], facts: dict[str, Any]) -> Any:
    """A group of facts, where all of them are there."""
    if kind is dict:
        return facts or None
    names = [one.name for one in fields(kind)]
    return kind(**{name: facts[name] for name in names}) if all(name in facts for name in names) else None


def host_reading_of(event: Event) -> HostReading | None:
    """The reading of the host's memory that an event carries."""
    if isinstance(event, StepEvent | MemoryEvent | ScarceMemoryEvent):
        return event.host
    return None
