"""The failure that matters, put together from all that was read of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from memfit.core.records import Cause, Evidence, OutOfMemory
from memfit.diagnosing.logs.facts import Dump, Facts, Failure, FailureKind, Traceback, TracebackFrame

_ON_DEVICE: tuple[FailureKind, ...] = ("allocator", "tensor", "copy", "request", "tpu", "torch")
_NEAR_LINES = 20_000  # between a failure and its traceback, or a dump and its op


@dataclass(frozen=True)
class Clue:
    """A cause, how strongly the facts speak for it, in words, and the lines that do."""

    cause: Cause
    strength: float  # 3 is as good as proof, 1 a hint
    words: str
    evidence: tuple[Evidence, ...] = ()
    bytes_at_stake: int | None = None  # what would be free without it


@dataclass(frozen=True)
class Case:
    """The input of the rules: the facts, the failure, its dump, its traceback and the ops that were named."""

    facts: Facts
    failure: Failure | None  # with what several lines say of it
    dump: Dump | None
    traceback: Traceback | None
    ops: tuple[str, ...] = field(default=())  # all that were named

    @property
    def request_bytes(self) -> int | None:
        """The bytes that were asked for."""
        return None if self.failure is None else self.failure.requested_bytes

    @property
    def stats(self) -> tuple[Evidence, ...]:
        """The line in which the allocator sums up its pool, where there is one."""
        found = None if self.dump is None else self.dump.stats_evidence
        return () if found is None else (found,)

    @property
    def frames(self) -> tuple[TracebackFrame, ...]:
        """The frames of the traceback."""
        return tuple(self.traceback.frames) if self.traceback else ()

    @property
    def source(self) -> str | None:
        """The user's own line."""
        if self.traceback is not None and self.traceback.users is not None:
            frame = self.traceback.users
            name = PurePath(frame.path.replace("\\", "/")).name
            return f"{name}:{frame.line}" if frame.line else name
        buffers = self.facts.buffers.buffers if self.facts.buffers else ()
        return next((buffer.source for buffer in buffers if buffer.source), None)

    def failed(self, *kinds: FailureKind) -> list[Failure]:
        """The failures of some kinds."""
        return self.facts.of(*kinds)

    def error(self) -> OutOfMemory | None:
        """The failure as a record."""
        found = self.failure
        if found is None:
            return None
        return OutOfMemory(
            found.evidence.text,
            found.requested_bytes,
            found.shape,
            found.dtype,
            found.device,
            found.allocator,
            found.op or None,
        )


def make_case(facts: Facts) -> Case:
    """The last failure on a device, else the last on the host, with its dump and its traceback."""
    dump = _last_dump(facts)
    failure = _merged(facts, dump)
    ops = [failure.op for failure in facts.of(*_ON_DEVICE) if failure.op]
    ops += [node.op for node in facts.nodes if node.op]
    return Case(facts, failure, dump, _traceback(facts, failure), tuple(dict.fromkeys(ops)))


def _last_dump(facts: Facts) -> Dump | None:
    dumps = [dump for dump in facts.dumps if not dump.is_empty]
    return dumps[-1] if dumps else None


def _merged(facts: Facts, dump: Dump | None) -> Failure | None:
    """Op, shape and bytes of the same failure come on different lines: whichever line is nearest counts."""
    found = facts.of(*_ON_DEVICE)
    if not found:
        others = facts.of("array", "host", "driver", "collective", "handle", "kill", "killed", "memfit")
        return _on_host(facts, others) if others else None
    shaped = [failure for failure in found if failure.shape is not None]
    main = shaped[-1] if shaped else next((one for one in reversed(found) if one.requested_bytes), found[-1])
    if dump is not None and dump.failure is not None and dump.failure.requested_bytes:
        main = dataclasses.replace(main, requested_bytes=dump.failure.requested_bytes)
    near = [one for one in found if one.worker == main.worker]
    near += [node for node in facts.nodes if node.worker == main.worker]
    near.sort(key=lambda one: abs(one.evidence.line - main.evidence.line))
    for name in ("op", "requested_bytes", "shape", "dtype", "device", "allocator"):
        if getattr(main, name) is None:
            value: Any = next((getattr(one, name) for one in near if getattr(one, name) is not None), None)
            main = dataclasses.replace(main, **{name: value})
    return _with_better_op(main, near)


def _on_host(facts: Facts, others: list[Failure]) -> Failure:
    """The failure that says most, with the op that it happened in."""
    main = max(others, key=lambda one: one.requested_bytes is not None)
    if main.kind != "array" or main.op is not None:
        return main
    nodes = sorted(facts.nodes, key=lambda node: abs(node.evidence.line - main.evidence.line))
    return dataclasses.replace(main, op=nodes[0].op) if nodes else main


def _with_better_op(main: Failure, near: list[Failure]) -> Failure:
    """A node of the graph says more than the function that it is in."""
    if main.op and main.op.startswith("__"):
        better = next((one.op for one in near if one.op and not one.op.startswith("__")), main.op)
        return dataclasses.replace(main, op=better)
    return main


def _traceback(facts: Facts, failure: Failure | None) -> Traceback | None:
    """The last that is of memory; else the last after the failure, which may have been interrupted."""
    every = list(facts.tracebacks)
    of_memory = [one for one in every if one.is_of_memory and one.users is not None]
    if of_memory:
        return of_memory[-1]
    if failure is None:
        return None
    line = failure.evidence.line
    near = [one for one in every if one.users is not None and abs(one.first_line - line) < _NEAR_LINES]
    return near[-1] if near else None
