"""The best possible schedule of a small network, as an integer program: the reference for cuts.

After Jain et al., "Checkmate" (MLSys 2020): stage t computes node t for the first time; R[t, v] says that a
stage computes v, S[t, v] that v is in memory when the stage begins. Nodes are the calls and, after them,
their gradients in reverse. Memory is counted after each computation of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from memfit.core.records import LayerCall, LayerGraph, LayerTensor


@dataclass(frozen=True)
class Network:
    """Calls with one output each: its bytes, and the calls whose outputs it takes (-1: the data)."""

    sizes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]

    def layer_graph(self) -> LayerGraph:
        """What `programs` would read off it: a gradient of a call needs its inputs and its output."""
        count = len(self.sizes)
        made = [sum(self.sizes[place] for place in inputs if place >= 0) or 1 for inputs in self.inputs]

        def pending(number: int) -> int:
            """Gradients in memory while those of one call are computed: its own, and what others wait for."""
            waiting = [
                made[later]
                for later in range(number + 1, count)
                if any(0 <= place <= number for place in self.inputs[later])
            ]
            return made[number] + sum(waiting)

        return LayerGraph(
            batch_size=1,
            calls=tuple(
                LayerCall(
                    name=f"call {number}",
                    path=(number,),
                    inputs=tuple(place for place in inputs if place >= 0),
                    outputs=(number,),
                    saved_bytes=self.sizes[number],
                    working_bytes=pending(number),
                    cost=1.0,
                )
                for number, inputs in enumerate(self.inputs)
            ),
            tensors=tuple(LayerTensor(size, saved=True) for size in self.sizes),
            outputs=(count - 1,),
        )

    def nodes(self) -> tuple[list[int], list[set[int]]]:
        """Bytes and predecessors of all nodes: calls, then the gradient of each call's inputs, in reverse.

        Node count + k belongs to call count - 1 - k; it makes the gradients of all of the call's inputs.
        """
        count = len(self.sizes)
        gradient = [2 * count - 1 - number for number in range(count)]
        sizes = list(self.sizes)
        before = [{place for place in inputs if place >= 0} for inputs in self.inputs]
        for number in reversed(range(count)):
            users = [n for n in range(count) if number in self.inputs[n]]
            sizes.append(sum(self.sizes[place] for place in self.inputs[number] if place >= 0) or 1)
            before.append(
                {number, *(p for p in self.inputs[number] if p >= 0), *(gradient[user] for user in users)}
            )
        return sizes, before


def smallest_possible_peak(network: Network, *, levels: int) -> float:
    """The smallest peak of any schedule that computes each call at most `levels` times more."""
    program = _Program(*network.nodes())
    program.limit_calls(len(network.sizes), 1 + levels)
    return program.solve()


class _Program:
    """The integer program over R, S, what is freed after each computation, and the peak."""

    def __init__(self, sizes: list[int], before: list[set[int]]) -> None:
        self._sizes, self._before = sizes, before
        self._count = count = len(sizes)
        pairs = [(t, v) for t in range(count) for v in range(count)]
        self._computed = {pair: number for number, pair in enumerate(pairs)}
        self._stored = {pair: number + len(pairs) for number, pair in enumerate(pairs)}
        triples = [(t, u, v) for t in range(count) for v in range(t + 1) for u in (*before[v], v)]
        self._freed = {triple: number + 2 * len(pairs) for number, triple in enumerate(triples)}
        self._peak = 2 * len(pairs) + len(triples)
        self._rows: list[tuple[dict[int, float], float]] = []  # coefficients, and what they may come to
        self._say_what_is_needed()
        self._say_what_is_freed()
        for stage in range(count):
            self._count_memory(stage)

    def _say_what_is_needed(self) -> None:
        computed, stored = self._computed, self._stored
        for (t, v), place in computed.items():
            self._rows += [({place: 1, computed[t, u]: -1, stored[t, u]: -1}, 0) for u in self._before[v]]
            if t > 0:
                kept = {stored[t, v]: 1.0, computed[t - 1, v]: -1.0, stored[t - 1, v]: -1.0}
                self._rows.append((kept, 0))

    def _say_what_is_freed(self) -> None:
        """After a computation of this stage, if nobody needs it later in the stage or keeps it."""
        for (t, u, v), place in self._freed.items():
            self._rows.append(({place: 1, self._computed[t, v]: -1}, 0))
            users = [w for w in range(v + 1, t + 1) if u in self._before[w]]
            self._rows += [({place: 1, self._computed[t, w]: 1}, 1) for w in users]
            if t + 1 < self._count:
                self._rows.append(({place: 1, self._stored[t + 1, u]: 1}, 1))

    def _count_memory(self, stage: int) -> None:
        held: dict[int, float] = {self._stored[stage, v]: self._sizes[v] for v in range(self._count)}
        for v in range(stage + 1):
            held[self._computed[stage, v]] = self._sizes[v]
            self._rows.append(({**held, self._peak: -1}, 0))
            for u in (*self._before[v], v):
                held[self._freed[stage, u, v]] = -self._sizes[u]

    def limit_calls(self, calls: int, times: int) -> None:
        """Calls so many times, gradients once."""
        for node in range(self._count):
            most = times if node < calls else 1
            self._rows.append(({self._computed[t, node]: 1.0 for t in range(self._count)}, most))

    def solve(self) -> float:
        size = self._peak + 1
        matrix = lil_matrix((len(self._rows), size))
        for number, (coefficients, _) in enumerate(self._rows):
            for place, value in coefficients.items():
                matrix[number, place] = value
        lower, upper, integral, objective = np.zeros(size), np.ones(size), np.ones(size), np.zeros(size)
        upper[self._peak], integral[self._peak], objective[self._peak] = np.inf, 0, 1
        for (t, v), place in self._computed.items():
            lower[place], upper[place] = float(t == v), float(t >= v)
            upper[self._stored[t, v]] = float(t > v)
        solved = milp(
            objective,
            constraints=LinearConstraint(matrix.tocsr(), -np.inf, [most for _, most in self._rows]),
            bounds=Bounds(lower, upper),
            integrality=integral,
            options={"time_limit": 60},
        )
        assert solved.status == 0, solved.message
        return float(solved.fun)
