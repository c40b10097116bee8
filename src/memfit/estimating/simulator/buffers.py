"""Memory that tensors share: how many uses each piece has left, whose it is, and what a step makes of it."""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.records import Op, OpGraph, Program, ProgramVariable
from memfit.estimating.simulator.allocator import Allocator

# What a tensor is in a simulation: a buffer (0 and up), a variable (-1 and down), or nothing in memory.
Value = int | None
Owner = tuple[str, str, str]  # a part of an estimate, a layer and a line

_UNOWNED = 0
_GONE = -1  # uses of a buffer that was given back


@dataclass(frozen=True)
class StepMemory:
    """The memory of one simulated step: the bytes before it, its peak, and every change."""

    before_bytes: int
    peak_bytes: int
    owners: Sequence[Owner]
    held_before: Sequence[int]  # bytes that each owner had asked for
    changed_by: array[int]  # what was asked for or given back, in this order, and by whom
    changed_owners: array[int]
    used_bytes: array[int]  # what is in use after each change
    peak_at: int  # the number of changes until the peak

    def holders(self) -> dict[Owner, int]:
        """The bytes that each owner had asked for at the peak; what the allocator adds to it is its own."""
        held = [*self.held_before, *itertools.repeat(0, len(self.owners) - len(self.held_before))]
        changes = zip(self.changed_owners, self.changed_by, strict=True)
        for owner, size in itertools.islice(changes, self.peak_at):
            held[owner] += size
        found = {owner: size for owner, size in zip(self.owners, held, strict=True) if size}
        found["allocator", "", ""] = self.peak_bytes - sum(held)
        return found

    def timeline(self, points: int) -> tuple[int, ...]:
        """The most that is in use in each of so many equal parts of the step."""
        changes = len(self.used_bytes)
        ends = [changes * point // points for point in range(points + 1)]
        found, last = [], self.before_bytes
        for begin, end in itertools.pairwise(ends):
            part = self.used_bytes[begin:end]
            found.append(max(last, max(part, default=last)))
            last = part[-1] if part else last
        return tuple(found)


class Buffers:
    """All buffers of a simulated process."""

    def __init__(self, memory: Allocator) -> None:
        self._memory = memory
        self.uses: list[int] = []
        self._address: list[int | None] = []
        self._sizes: list[int] = []
        self._owner: list[int] = []
        self._items: dict[int, list[int]] = {}  # what lists of tensors hold
        self._scratch: dict[int, tuple[int, int]] = {}  # sizes and owners, by address
        self._owners: list[Owner] = [("", "", "")]
        self._numbers = {owner: number for number, owner in enumerate(self._owners)}
        self._held: list[int] = [0]
        self.begin_step()

    def owner(self, part: str, layer: str = "", line: str = "") -> int:
        """The number of an owner."""
        owner = (part, layer, line)
        if owner not in self._numbers:
            self._numbers[owner] = len(self._owners)
            self._owners.append(owner)
            self._held.append(0)
        return self._numbers[owner]

    def begin_step(self) -> None:
        """Take note of what happens from now on."""
        self._memory.forget_peak()
        self._before = self._highest = self._memory.used_bytes
        self._held_before = self._held.copy()
        self._changed_by, self._changed_owners, self._used = array("q"), array("l"), array("q")
        self._peak_at = 0

    def end_step(self) -> StepMemory:
        """The memory of the step since it began."""
        return StepMemory(
            self._before,
            self._memory.peak_bytes,
            self._owners,
            self._held_before,
            self._changed_by,
            self._changed_owners,
            self._used,
            self._peak_at,
        )

    def new(self, size: int, owner: int) -> int:
        """A buffer without any use yet."""
        buffer = self._add(self._memory.allocate(size), size, owner)
        self._note(size, owner)
        return buffer

    def give(self, buffer: int, owner: int) -> None:
        """Give it to another owner from now on."""
        if self._owner[buffer] != owner:
            self._note(-self._sizes[buffer], self._owner[buffer])
            self._owner[buffer] = owner
            self._note(self._sizes[buffer], owner)

    def copy(self, buffer: int) -> int:
        """Another buffer of the same size, with one use."""
        other = self.new(self._sizes[buffer], self._owner[buffer])
        self.uses[other] = 1
        return other

    def new_list(self, items: list[int]) -> int:
        """A list of buffers; it is no memory itself."""
        for item in items:
            self.uses[item] += 1
        return self._add_list(items)

    def items(self, buffer: Value) -> list[int]:
        """The buffers that a list holds."""
        return self._items.get(buffer, []) if buffer is not None else []

    def put(self, buffer: Value, item: Value) -> int:
        """A list with one more item."""
        other = self._as_list_of_its_own(buffer)
        if item is not None and item >= 0:
            self.uses[item] += 1
            self._items[other].append(item)
        return other

    def joined(self, lists: list[Value]) -> int:
        """A list of what several hold."""
        joined = self._as_list_of_its_own(lists[0])
        for other in lists[1:]:
            for item in self.items(other):
                self.uses[item] += 1
                self._items[joined].append(item)
        return joined

    def popped(self, buffer: Value) -> tuple[int, Value]:
        """A list without its last item, and that item, which lives as long as the old list or a use."""
        if not self.items(buffer):
            return self.new_list([]), None
        assert buffer is not None
        rest = self._as_list_of_its_own(buffer)
        last = self._items[rest].pop()
        if self._items[buffer]:  # the old list lives on, with an item of its own
            self.uses[last] -= 1
        else:
            self._items[buffer].append(last)
        return rest, last

    def scratch(self, size: int, owner: int) -> int:
        """The address of memory that is no operation's output."""
        address = self._memory.allocate(size)
        self._scratch[address] = (size, owner)
        self._note(size, owner)
        return address

    def free_scratch(self, address: int) -> None:
        """Give it back."""
        self._memory.free(address)
        size, owner = self._scratch.pop(address)
        self._note(-size, owner)

    def release(self, buffer: int) -> None:
        """One use less; without any, the memory is free."""
        self.uses[buffer] -= 1
        if self.uses[buffer] == 0:
            self.drop(buffer)

    def drop(self, buffer: int) -> None:
        """Give back what is not used any more."""
        self.uses[buffer] = _GONE
        address = self._address[buffer]
        if address is not None:
            self._memory.free(address)
            self._note(-self._sizes[buffer], self._owner[buffer])
        else:
            for item in self._items.pop(buffer, ()):
                self.release(item)

    def _as_list_of_its_own(self, buffer: Value) -> int:
        """The same items in a new list; they are taken over where nothing else uses the old one."""
        if buffer is not None and buffer in self._items and self.uses[buffer] == 1:
            items, self._items[buffer] = self._items[buffer], []
            return self._add_list(items)
        return self.new_list(list(self.items(buffer)))

    def _add_list(self, items: list[int]) -> int:
        buffer = self._add(None, 0, _UNOWNED)
        self._items[buffer] = items
        return buffer

    def _add(self, address: int | None, size: int, owner: int) -> int:
        self.uses.append(0)
        self._address.append(address)
        self._sizes.append(size)
        self._owner.append(owner)
        return len(self.uses) - 1

    def _note(self, size: int, owner: int) -> None:
        used = self._memory.used_bytes
        self._held[owner] += size
        self._changed_by.append(size)
        self._changed_owners.append(owner)
        self._used.append(used)
        if used > self._highest:
            self._highest, self._peak_at = used, len(self._used)


class Wiring:
    """A graph with who uses what, made once."""

    def __init__(self, graph: OpGraph, buffers: Buffers, *, last_first: bool) -> None:
        """Operations that become ready together are listed in their order in the graph, or the last first."""
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


class GraphFrame:
    """A graph that is running: what its tensors are so far."""

    __slots__ = ("call", "calls", "left", "turn", "values", "waiting", "wiring")

    def __init__(self, wiring: Wiring, call: GraphCall | None = None, turn: int = 0) -> None:
        self.wiring = wiring
        self.values: list[Value] = [None] * len(wiring.users)
        self.waiting = wiring.waiting.copy()
        self.left = len(wiring.ops) + len(wiring.graph.inputs)
        self.call, self.turn = call, turn  # whose it is, and which time of a loop
        self.calls: dict[int, GraphCall] = {}


class GraphCall:
    """An operation that runs another graph, once or in a loop; what goes in and out passes one by one."""

    def __init__(self, frame: GraphFrame, number: int, wiring: Wiring) -> None:
        self.frame, self.number, self.wiring = frame, number, wiring
        self.op = frame.wiring.ops[number]
        self.is_open = frame.waiting[number] == 0
        self.held: list[tuple[int, int, Value]] = []  # turns, positions and values that have to wait
        self.frames: dict[int, GraphFrame] = {}
        self.oldest = 0


Task = tuple[GraphFrame, int]


class Ready:
    """The operations that became ready when one ended: cheap ones run at once, then the last other one."""

    def __init__(self, inline: deque[Task], queue: deque[Task]) -> None:
        self._inline, self._queue = inline, queue
        self._last: Task | None = None

    def add(self, frame: GraphFrame, number: int) -> None:
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


_PARTS = {"weight": "weights", "optimizer": "optimizer", "other": "weights"}  # of variables


class LastingValues:
    """The variables of a program, created as Keras does, and its constants."""

    def __init__(self, program: Program, buffers: Buffers, memory: Allocator) -> None:
        self._buffers, self._memory = buffers, memory
        self._zeros: dict[tuple[tuple[int, ...], int], int] = {}
        self._constants: dict[int, int] = {}
        self.owners = [self._owner(variable) for variable in program.variables]
        self.variables = [self._created(variable) for variable in program.variables]

    def _created(self, variable: ProgramVariable) -> int:
        """A variable as Keras creates it.

        What is drawn is scaled and shifted, each time in a copy. Variables of an optimizer begin as zeros,
        and those of the same shape as the same ones, until they change.
        """
        if variable.role == "optimizer" and (variable.shape, variable.bytes) in self._zeros:
            buffer = self._zeros[variable.shape, variable.bytes]
            self._buffers.uses[buffer] += 1
            return buffer
        copies = [self._memory.allocate(variable.bytes) for _ in range(2 if variable.drawn else 0)]
        buffer = self._buffers.new(variable.bytes, self._owner(variable))
        self._buffers.uses[buffer] = 1
        for copy in reversed(copies):
            self._memory.free(copy)
        if variable.role == "optimizer" and variable.shape:
            self._zeros[variable.shape, variable.bytes] = buffer
        return buffer

    def _owner(self, variable: ProgramVariable) -> int:
        """Whose a variable is: what holds nothing at first takes gradients later."""
        part = _PARTS[variable.role] if variable.bytes else "gradients"
        return self._buffers.owner(part, variable.layer)

    def constant(self, op: Op, size: int) -> int:
        """The buffer of a constant, held from its first use on."""
        if id(op) not in self._constants:
            buffer = self._buffers.new(size, self._buffers.owner("weights", op.layer, op.line))
            self._buffers.uses[buffer] = 1
            self._constants[id(op)] = buffer
        return self._constants[id(op)]
