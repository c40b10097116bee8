"""Graphs that run in a simulation: who uses what, what is there so far, and what is ready to run."""

from __future__ import annotations

from collections import deque

from memfit.estimates.buffers import Buffers, Value
from memfit.records import OpGraph


class Wiring:
    """A graph with who uses what, made once."""

    def __init__(self, graph: OpGraph, buffers: Buffers, *, last_first: bool) -> None:
        """Operations that become ready together are told in their order in the graph, or the last first."""
        self.graph = graph
        self.ops = graph.ops
        self.owners = [buffers.owner(op.part, op.layer, op.line) for op in graph.ops]
        self.scratch_owners = [
            buffers.owner("scratch", op.layer, op.line) if op.scratch else 0 for op in graph.ops
        ]
        self.cheap = [op.cheap for op in graph.ops]
        self.calls = [op.role == "call" for op in graph.ops]
        self.users: list[list[tuple[int, int]]] = [[] for _ in graph.tensors]  # operations and positions
        self.followers: list[list[int]] = [[] for _ in graph.ops]
        for number in reversed(range(len(graph.ops))) if last_first else range(len(graph.ops)):
            for place, tensor in enumerate(graph.ops[number].inputs):
                self.users[tensor].append((number, place))
            for other in graph.ops[number].after:
                self.followers[other].append(number)
        self.places: dict[int, list[int]] = {}  # tensor -> positions among the outputs
        for place, tensor in enumerate(graph.outputs):
            self.places.setdefault(tensor, []).append(place)
        self.uses = [len(users) + len(self.places.get(t, ())) for t, users in enumerate(self.users)]
        # The inputs of a call pass one by one, so that it does not wait for all of them.
        self.waiting = [
            len(op.after) + (0 if is_call else len(op.inputs))
            for op, is_call in zip(graph.ops, self.calls, strict=True)
        ]
        self.roots = [
            number for number, waiting in enumerate(self.waiting) if not (waiting or self.calls[number])
        ]


class Frame:
    """A graph that is running: what its tensors are so far."""

    __slots__ = ("call", "calls", "left", "turn", "values", "waiting", "wiring")

    def __init__(self, wiring: Wiring, call: Call | None = None, turn: int = 0) -> None:
        self.wiring = wiring
        self.values: list[Value] = [None] * len(wiring.users)
        self.waiting = wiring.waiting.copy()
        self.left = len(wiring.ops) + len(wiring.graph.inputs)
        self.call, self.turn = call, turn  # whose it is, and which time of a loop
        self.calls: dict[int, Call] = {}


class Call:
    """An operation that runs another graph, once or in a loop; what goes in and out passes one by one."""

    def __init__(self, frame: Frame, number: int, wiring: Wiring) -> None:
        self.frame, self.number, self.wiring = frame, number, wiring
        self.op = frame.wiring.ops[number]
        self.is_open = frame.waiting[number] == 0
        self.held: list[tuple[int, int, Value]] = []  # turns, positions and values that have to wait
        self.frames: dict[int, Frame] = {}
        self.oldest = 0


Task = tuple[Frame, int]


class Ready:
    """What has become ready when an operation ended: cheap ones run at once, then the last other one."""

    def __init__(self, inline: deque[Task], queue: deque[Task]) -> None:
        self._inline, self._queue = inline, queue
        self._last: Task | None = None

    def add(self, frame: Frame, number: int) -> None:
        """An operation has all that it needs."""
        task = (frame, number)
        if frame.wiring.cheap[number]:
            self._inline.append(task)
            return
        if self._last is not None:
            self._queue.appendleft(self._last)
        self._last = task

    def settle(self) -> None:
        """That was all: the last one goes on here, unless there are cheap ones to run first."""
        if self._last is None:
            return
        if self._inline:
            self._queue.appendleft(self._last)
        else:
            self._inline.append(self._last)
        self._last = None
