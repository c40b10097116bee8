"""TensorFlow's executor, simulated: what is in memory while a step runs.

An operation starts when its inputs are there and a worker is free. A worker runs cheap operations at once,
goes on with the last one that became ready, and leaves the others where idle workers find them. How long
operations take is drawn at random around a guess, so that several simulations show what orders are possible.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

from memfit.core.records import Op, Program
from memfit.core.records.programs import TURNS_AT_ONCE, pieces_of_room
from memfit.estimating.simulator.allocator import Allocator, PoolExhausted
from memfit.estimating.simulator.buffers import (
    Buffers,
    GraphCall,
    GraphFrame,
    LastingValues,
    Ready,
    StepMemory,
    Task,
    Value,
    Wiring,
)

_NUMBER_BYTES = 4


class Simulation:
    """One process that runs the same step over and over."""

    def __init__(
        self,
        program: Program,
        *,
        workers: int,
        limit_bytes: int | None = None,
        seed: int = 0,
        spread: float = 1.0,
        loops_finish_first: bool = False,
    ) -> None:
        """`seed` chooses how long operations take.

        The bodies of loops begin the next time round before they finish what nothing waits for, as
        TensorFlow's do, unless they shall finish first.
        """
        self.memory = Allocator(limit_bytes)
        self.memory.free(self.memory.allocate(1))  # the shape or seed of the first variable: a small region
        self.buffers = Buffers(self.memory)
        self.wiring = Wiring(program.graph, self.buffers, last_first=False)
        in_loops = {
            op.body for graph in (program.graph, *program.bodies) for op in graph.ops if op.parallel > 1
        }
        self.bodies = [
            Wiring(body, self.buffers, last_first=number in in_loops and not loops_finish_first)
            for number, body in enumerate(program.bodies)
        ]
        self.workers, self.spread = workers, spread
        self.is_guarded = program.is_guarded
        self.random = random.Random(seed)
        self.lasting = LastingValues(program, self.buffers, self.memory)

    def step(self) -> StepMemory:
        """Run one step."""
        self.buffers.begin_step()
        _Run(self).go()
        return self.buffers.end_step()


class _Run:
    """One step."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._buffers = simulation.buffers
        self._random = simulation.random
        self._clock = 0.0
        self._started = 0
        # When each ends, in which order they started, who runs it, what it is, what it makes and needs.
        self._running: list[tuple[float, int, int, Task, list[Value], list[int]]] = []
        self._idle = list(range(simulation.workers))
        self._inline: list[deque[Task]] = [deque() for _ in self._idle]
        self._queues: list[deque[Task]] = [deque() for _ in self._idle]
        self._ready = [Ready(*pair) for pair in zip(self._inline, self._queues, strict=True)]
        self._kept: list[int] = []

    def go(self) -> None:
        """Run it to its end."""
        frame = self._begin()
        self._dispatch()
        while self._running:
            self._clock, _, worker, task, outputs, scratch = heapq.heappop(self._running)
            self._finish(worker, task, outputs, scratch)
            self._idle.append(worker)
            self._dispatch()
        assert frame.left == 0, f"{frame.left} operations wait for what never comes"
        for buffer in self._kept:
            self._buffers.release(buffer)

    def _begin(self) -> GraphFrame:
        frame = GraphFrame(self._simulation.wiring)
        for root in frame.wiring.roots:
            self._random.choice(self._queues).append((frame, root))
        ready, owner = self._ready[0], self._buffers.owner("data")
        for tensor in frame.wiring.graph.inputs:
            value = self._buffers.new(frame.wiring.graph.tensors[tensor], owner)
            self._buffers.uses[value] = 1  # whoever calls holds it until the end
            self._kept.append(value)
            self._arrive(frame, tensor, value, ready)
        ready.settle()
        return frame

    # Workers

    def _dispatch(self) -> None:
        """Give work to idle workers, to the one that has just become idle first."""
        waits: PoolExhausted | None = None
        for worker in reversed(self._idle.copy()):
            try:
                if self._work(worker):
                    self._idle.remove(worker)
            except PoolExhausted as error:  # until others give something back, if there are any
                waits = error
        if waits is not None and not self._running:
            raise waits

    def _work(self, worker: int) -> bool:
        """Run cheap operations until there is one that takes time; False if there is nothing to do."""
        inline = self._inline[worker]
        while True:
            task = inline.popleft() if inline else self._next_task(worker)
            if task is None:
                return False
            frame, number = task
            op = frame.wiring.ops[number]
            try:
                outputs, scratch = self._start(frame, number, op)
            except PoolExhausted:
                inline.appendleft(task)
                raise
            if not op.cheap:
                self._started += 1
                ends = self._clock + op.seconds * math.exp(self._random.gauss(0.0, self._simulation.spread))
                heapq.heappush(self._running, (ends, self._started, worker, task, outputs, scratch))
                return True
            self._finish(worker, task, outputs, scratch)

    def _next_task(self, worker: int) -> Task | None:
        if self._queues[worker]:
            return self._queues[worker].popleft()
        return next((queue.pop() for queue in self._queues if queue), None)

    # Operations

    def _start(self, frame: GraphFrame, number: int, op: Op) -> tuple[list[Value], list[int]]:
        """Take the memory that an operation needs: its outputs, and addresses of scratch."""
        inputs = [frame.values[tensor] for tensor in op.inputs]
        match op.role:
            case "compute":
                return self._compute(frame.wiring, number, inputs)
            case "alias":
                return inputs if len(op.outputs) == len(inputs) else inputs[:1] * len(op.outputs), []
            case "constant":
                size = frame.wiring.graph.tensors[op.outputs[0]]
                return [self._simulation.lasting.constant(op, size) if size else None], []
            case "variable":
                return [_variable(op.variable or 0)], []
            case "read" | "assign" | "update":
                return self._with_variable(op, inputs)
            case "pop":
                rest, last = self._buffers.popped(inputs[0])
                return [rest, last], []
        return [self._with_list(op, inputs)], []

    def _compute(self, wiring: Wiring, number: int, inputs: list[Value]) -> tuple[list[Value], list[int]]:
        buffers, sizes, op = self._buffers, wiring.graph.tensors, wiring.ops[number]
        outputs: list[Value] = [None] * len(op.outputs)
        for place in op.reuses:
            value = inputs[place]
            if value is not None and value >= 0 and buffers.uses[value] == 1:
                outputs[op.reusing] = value
                break
        if op.rooms and self._simulation.is_guarded:
            self._make_sure_of_room(op, sizes[op.outputs[0]])
        made: list[int] = []
        scratch: list[int] = []
        try:
            for place, tensor in enumerate(op.outputs):
                if outputs[place] is None and sizes[tensor]:
                    made.append(buffers.new(sizes[tensor], wiring.owners[number]))
                    outputs[place] = made[-1]
            owner = wiring.scratch_owners[number]
            scratch.extend(buffers.scratch(size, owner) for size in op.scratch)  # as far as there is room
        except PoolExhausted:
            for buffer in made:
                buffers.drop(buffer)
            for address in scratch:
                buffers.free_scratch(address)
            raise
        return outputs, scratch

    def _make_sure_of_room(self, op: Op, size: int) -> None:
        """Take as much as a guard does before an operation, and give it back."""
        memory, numbers = self._simulation.memory, (size // _NUMBER_BYTES, op.filter_bytes // _NUMBER_BYTES)
        pieces = pieces_of_room(*numbers, outputs=op.rooms)
        for address in [memory.allocate(_NUMBER_BYTES * piece) for piece in pieces]:
            memory.free(address)

    def _with_variable(self, op: Op, inputs: list[Value]) -> tuple[list[Value], list[int]]:
        buffers, variables = self._buffers, self._simulation.lasting.variables
        nothing: list[Value] = [None] * len(op.outputs)
        if op.role == "update":
            self._update([-1 - value for value in inputs if value is not None and value < 0])
            return nothing, []
        handle = inputs[0]
        if handle is None or handle >= 0:
            return nothing, []
        place = -1 - handle
        held = variables[place]
        if op.role == "read":
            return [held], []
        given = inputs[1]
        if given is not None and given >= 0:
            buffers.uses[given] += 1
            buffers.give(given, self._simulation.lasting.owners[place])
            variables[place] = given
            buffers.release(held)
        return nothing, []

    def _update(self, places: list[int]) -> None:
        """Change variables in place; where another holder shares the memory, a copy of it."""
        buffers, variables = self._buffers, self._simulation.lasting.variables
        shared = [place for place in places if buffers.uses[variables[place]] > 1]
        before = [variables[place] for place in shared]
        for place, held in zip(shared, before, strict=True):
            variables[place] = buffers.copy(held)
        for held in before:
            buffers.release(held)

    def _with_list(self, op: Op, inputs: list[Value]) -> Value:
        buffers = self._buffers
        if op.role == "new_list":
            return buffers.new_list([])
        if op.role == "fill":
            owner = buffers.owner(op.part, op.layer, op.line)
            rows = [buffers.new(op.scratch[0], owner) for _ in range(op.times)]
            return buffers.new_list(rows)
        if op.role == "take":
            items = buffers.items(inputs[0])
            return items[-1] if items else None
        if op.role == "put":
            return buffers.put(inputs[0], inputs[-1])
        assert op.role == "join", op.role
        return buffers.joined(inputs)

    def _finish(self, worker: int, task: Task, outputs: list[Value], scratch: list[int]) -> None:
        """Pass an operation's outputs on, and let go of what it needed."""
        frame, number = task
        wiring, buffers = frame.wiring, self._buffers
        op = wiring.ops[number]
        for address in scratch:
            buffers.free_scratch(address)
        uses, values = buffers.uses, frame.values
        for tensor, value in zip(op.outputs, outputs, strict=True):
            if value is not None and value >= 0:
                uses[value] += wiring.uses[tensor]
        for tensor in op.inputs:
            value = values[tensor]
            if value is not None and value >= 0:
                buffers.release(value)
        for value in outputs:
            if value is not None and value >= 0 and uses[value] == 0:
                buffers.drop(value)
        ready = self._ready[worker]
        for tensor, value in zip(op.outputs, outputs, strict=True):
            self._pass_on(frame, tensor, value, ready)
        self._done(frame, number, ready)
        ready.settle()

    def _pass_on(self, frame: GraphFrame, tensor: int, value: Value, ready: Ready) -> None:
        """A tensor of a graph is there, and all its uses are counted."""
        wiring, waiting = frame.wiring, frame.waiting
        frame.values[tensor] = value
        for user, place in wiring.users[tensor]:
            if wiring.calls[user]:
                self._pass_in(self._call(frame, user), 0, place, value, ready)
            else:
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready.add(frame, user)
        if tensor in wiring.places:
            for place in wiring.places[tensor]:
                self._pass_out(frame, place, value, ready)

    def _arrive(self, frame: GraphFrame, tensor: int, value: Value, ready: Ready) -> None:
        """A tensor comes from outside a graph."""
        if value is not None and value >= 0:
            self._buffers.uses[value] += frame.wiring.uses[tensor]
        self._pass_on(frame, tensor, value, ready)
        self._one_less(frame, ready)

    def _done(self, frame: GraphFrame, number: int, ready: Ready) -> None:
        """An operation is done."""
        for follower in frame.wiring.followers[number]:
            frame.waiting[follower] -= 1
            if frame.waiting[follower] == 0:
                if frame.wiring.calls[follower]:
                    self._open(self._call(frame, follower), ready)
                else:
                    ready.add(frame, follower)
        self._one_less(frame, ready)

    def _one_less(self, frame: GraphFrame, ready: Ready) -> None:
        frame.left -= 1
        if frame.left == 0 and frame.call is not None:
            self._ended(frame.call, ready)

    # Calls and loops

    def _call(self, frame: GraphFrame, number: int) -> GraphCall:
        if number not in frame.calls:
            body = frame.wiring.ops[number].body
            assert body is not None
            frame.calls[number] = GraphCall(frame, number, self._simulation.bodies[body])
        return frame.calls[number]

    def _open(self, call: GraphCall, ready: Ready) -> None:
        call.is_open = True
        if not call.op.inputs:
            self._turn(call, 0, ready)
        self._let_in(call, ready)

    def _let_in(self, call: GraphCall, ready: Ready) -> None:
        held, call.held = call.held, []
        for turn, place, value in held:
            self._pass_in(call, turn, place, value, ready)

    def _turns_at_once(self, call: GraphCall) -> int:
        return min(TURNS_AT_ONCE, call.op.parallel) if self._simulation.is_guarded else call.op.parallel

    def _pass_in(self, call: GraphCall, turn: int, place: int, value: Value, ready: Ready) -> None:
        """Hand a value with one use to a turn of a call, as soon as that may run."""
        if not call.is_open or turn - call.oldest >= self._turns_at_once(call):
            call.held.append((turn, place, value))
            return
        frame = self._turn(call, turn, ready)
        self._arrive(frame, call.wiring.graph.inputs[place], value, ready)
        if value is not None and value >= 0:
            self._buffers.release(value)

    def _turn(self, call: GraphCall, turn: int, ready: Ready) -> GraphFrame:
        """The graph that runs in a turn of a call, begun if it was not."""
        frame = call.frames.get(turn)
        if frame is None:
            frame = call.frames[turn] = GraphFrame(call.wiring, call, turn)
            for root in call.wiring.roots:
                ready.add(frame, root)
        return frame

    def _pass_out(self, frame: GraphFrame, place: int, value: Value, ready: Ready) -> None:
        """Hand an output with one use to the next turn, to whoever called, or keep it until the end."""
        call = frame.call
        if call is not None and frame.turn + 1 < call.op.times:
            self._pass_in(call, frame.turn + 1, place, value, ready)
            return
        if call is not None and place < len(call.op.outputs):
            tensor = call.op.outputs[place]
            if value is not None and value >= 0:
                self._buffers.uses[value] += call.frame.wiring.uses[tensor]
            self._pass_on(call.frame, tensor, value, ready)
        if value is not None and value >= 0:
            if call is None:
                self._kept.append(value)
            else:
                self._buffers.release(value)

    def _ended(self, call: GraphCall, ready: Ready) -> None:
        """A turn is over: others may begin, and after the last the call is done."""
        while call.oldest in call.frames and call.frames[call.oldest].left == 0:
            del call.frames[call.oldest]
            call.oldest += 1
        if call.oldest == call.op.times:
            self._done(call.frame, call.number, ready)
        else:
            self._let_in(call, ready)


def _variable(number: int) -> Value:
    return -1 - number
